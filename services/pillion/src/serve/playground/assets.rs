//! The web page: one document, one style sheet, a script in two files and an icon, all embedded in this program.
//! Nothing is fetched from elsewhere, and the content security policy enforces that.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asset {
    pub(super) path: &'static str,
    media_type: &'static str,
    text: &'static str,
}

/// All files.
pub(super) const ALL: [Asset; 5] = [
    Asset { path: "/", media_type: "text/html; charset=utf-8", text: include_str!("assets/index.html") },
    Asset {
        path: "/playground/style.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("assets/style.css"),
    },
    Asset {
        path: "/playground/playground.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("assets/playground.js"),
    },
    Asset {
        path: "/playground/editor.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("assets/editor.js"),
    },
    Asset { path: "/playground/icon.svg", media_type: "image/svg+xml", text: include_str!("assets/icon.svg") },
];

/// The content security policy: the page may read these files and call this server. Inline scripts and styles, HTML
/// from strings, and framing are forbidden.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// Headers of every response.
pub(super) const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    // Another build may serve another page here soon.
    ("cache-control", "no-store"),
];

impl Asset {
    pub(super) fn response(self) -> Response {
        ([(CONTENT_TYPE, self.media_type)], self.text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_nothing_inline_and_nothing_from_elsewhere() {
        let [page, style, script, editor, icon] = ALL.map(|asset| asset.text);
        for forbidden in ["<style", "style=", "javascript:", " onclick", " onload", "<base", "<iframe"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert_eq!(page.matches("<script").count(), 1);
        for (name, text) in [("page", page), ("style", style), ("script", script), ("editor", editor)] {
            assert!(!text.contains("https://") && !text.contains("http://") && !text.contains("url(//"), "{name}");
        }
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!script.contains(forbidden) && !editor.contains(forbidden), "{forbidden}");
        }
        assert!(icon.starts_with("<svg"));
        for asset in ALL.iter().skip(1) {
            let file = asset.path.trim_start_matches("/playground/");
            assert!(page.contains(asset.path) || script.contains(&format!("\"./{file}\"")), "{file} is not used");
        }
    }
}
