//! Tests the playground page in a real browser, with the mouse and the keyboard and in both themes. Also takes
//! screenshots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::Dev;
use super::driver::{Browser, key, programs};

/// The script that checks contrasts, references and sizes in the page.
const CHECKS: &str = include_str!("checks.js");
/// A script that returns whether the response to the newest inputs has arrived.
const DONE: &str = "return document.body.dataset.state === 'done'";
/// A profile without indentation. It shows whether the editor adds any indentation.
const PROFILE: &str = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: typed}\n\
                       spec: {activation: Always, template: {spec: {containers: [{name: typed-in, image: \"x:1\"}]}}}";

/// A script that returns the id of the focused element.
const FOCUSED: &str = "return document.activeElement.id || document.activeElement.tagName";

fn text(browser: &Browser, id: &str) -> String {
    browser.run(&format!("return document.getElementById('{id}').textContent")).as_str().unwrap().to_owned()
}

/// Replaces the content of an editor, key by key.
fn type_keys(browser: &Browser, id: &str, text: &str) {
    browser.click(&format!("#{id}"));
    browser.press_with(key::CONTROL, 'a');
    browser.press(text.chars().map(|letter| if letter == '\n' { key::ENTER } else { letter }));
}

/// Replaces the content of an editor at once, as if pasted from a clipboard.
fn retype(browser: &Browser, id: &str, text: &str) {
    browser.click(&format!("#{id}"));
    browser.press_with(key::CONTROL, 'a');
    browser.devtools("Input.insertText", &json!({"text": text}));
}

/// Waits until the response to the newest inputs has arrived, and the element contains this text.
fn wait_for_text(browser: &Browser, id: &str, part: &str) {
    let script = format!(
        "return document.body.dataset.state === 'done' && document.getElementById('{id}').textContent.includes({})",
        json!(part)
    );
    browser.until(&format!("{part:?} in #{id}"), &script);
}

/// Checks contrasts, references and sizes in the page. `where_` describes the state of the page in error messages.
fn is_legible(browser: &Browser, where_: &str) {
    // Waits for the end of transitions, since their colours belong to neither theme.
    browser.until("no transition is running", "return document.getAnimations().length === 0");
    let wrong = browser.run(CHECKS);
    assert_eq!(wrong, json!([]), "{where_}");
}

/// Like [`is_legible`]. Also checks that every control has an accessible name.
fn is_accessible(browser: &Browser, where_: &str) {
    is_legible(browser, where_);
    for control in browser.all("button, select, textarea, input, summary, a[href], [role=tab], [tabindex='0']") {
        let (label, role) = browser.label_and_role(&control);
        // Hidden controls have no name, and no role.
        assert!(!label.trim().is_empty() || role.is_empty() || role == "none", "{where_}: a {role} has no name");
    }
}

#[test]
#[ignore = "needs Chromium: just browser"]
fn page_works_in_a_browser() {
    let programs = programs();
    let dev = Dev::start(&[]);
    let browser = Browser::start(&programs, 1440, 900);
    browser.open(&dev.url());
    browser.until("the first example", DONE);
    assert_eq!(
        text(&browser, "injected-panel").matches("sidecar-nginx").count(),
        2,
        "its container and its injection record"
    );
    wait_for_text(&browser, "outcomes", "Injected");
    is_accessible(&browser, "as it opens");

    examples(&browser);
    edit_by_typing(&browser);
    diagnostics(&browser);
    server_errors(&browser);
    newest_response_wins(&browser);
    nothing_becomes_html(&browser);
    keyboard(&browser);
    tabs(&browser);
    themes(&browser);
    links(&browser, &dev);
    own_content_is_restorable(&browser, &dev);
    narrow(&browser);

    let grave: Vec<_> = browser.log("browser").into_iter().filter(|entry| entry["level"] != "DEBUG").collect();
    assert_eq!(grave, Vec::<Value>::new(), "the console");
    let asked = browser.requested();
    // The browser itself serves these URLs.
    let is_own = |url: &&String| ["about:", "chrome:", "data:"].iter().any(|scheme| url.starts_with(scheme));
    let elsewhere: Vec<_> = asked.iter().filter(|url| !is_own(url) && !url.starts_with(&dev.url())).collect();
    assert_eq!(elsewhere, Vec::<&String>::new(), "requests to other hosts");
    assert!(asked.iter().any(|url| url.ends_with("/playground/run")), "no request was recorded: {asked:?}");

    drop(dev);
    retype(&browser, "profile", PROFILE);
    wait_for_text(&browser, "status", "does not respond");
    wait_for_text(&browser, "outcomes", "Not run");
}

fn choose(browser: &Browser, name: &str) {
    browser.run(&format!(
        "const list = document.getElementById('examples');
         list.value = [...list.options].find((option) => option.text === '{name}').value;
         list.dispatchEvent(new Event('change'))"
    ));
}

fn examples(browser: &Browser) {
    choose(browser, "istio");
    wait_for_text(browser, "injected-panel", "istio-proxy");
    assert!(!text(browser, "about").is_empty());
    is_accessible(browser, "with a large profile");
    choose(browser, "deny-env");
    wait_for_text(browser, "outcomes", "Rejected");
    wait_for_text(browser, "explanation-panel", "containers may not set env");
    // The page must show the example that was chosen last, even if its response arrives first.
    hold_next_response(browser);
    choose(browser, "istio");
    browser.until("a response is held back", "return window.go !== undefined");
    choose(browser, "nginx");
    wait_for_text(browser, "injected-panel", "sidecar-nginx");
    browser.run("window.go()");
    browser.run("return new Promise((done) => setTimeout(done))");
    wait_for_text(browser, "about", "nginx");
    wait_for_text(browser, "injected-panel", "sidecar-nginx");
}

fn edit_by_typing(browser: &Browser) {
    retype(
        browser,
        "object",
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: web, image: w}]}}",
    );
    type_keys(browser, "profile", PROFILE);
    wait_for_text(browser, "injected-panel", "typed-in");
    wait_for_text(browser, "status", "Pod default/web: injected");
    let added =
        browser.run("return [...document.querySelectorAll('#injected-panel ins')].map((line) => line.textContent)");
    assert!(added.as_array().unwrap().contains(&json!("  - name: typed-in")), "{added}");
    for (panel, part) in [("diff", "@@ "), ("patch", "\"op\": \"add\""), ("explanation", "/spec/containers/typed-in")] {
        assert!(
            text(browser, &format!("{panel}-panel")).contains(part),
            "{panel}: {}",
            text(browser, &format!("{panel}-panel"))
        );
    }
    // The labels of the namespace affect the result.
    browser.click("#namespace-tab");
    retype(browser, "namespace", "{apiVersion: v1, kind: Namespace, metadata: {name: default}}");
    wait_for_text(browser, "outcomes", "Not injected");
    wait_for_text(browser, "explanation-panel", "not_opted_in");
    retype(browser, "namespace", "{kind: Namespace, metadata: {name: default, labels: {pillion.dev/injection: held}}}");
    wait_for_text(browser, "outcomes", "Injected");
    browser.click("#object-tab");
}

/// The page shows the same mistakes as `pillion lint`, and a click on one selects its position.
fn diagnostics(browser: &Browser) {
    let broken = PROFILE.replace("activation", "activaton");
    retype(browser, "profile", &broken);
    wait_for_text(browser, "profile-problems", "activaton");
    wait_for_text(browser, "outcomes", "Not run");
    wait_for_text(browser, "status", "1 problem");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("profile.yaml"), &broken).unwrap();
    let linted = Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["lint", "-o", "json", "profile.yaml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let linted: Value = serde_json::from_slice(&linted.stdout).unwrap();
    let [problem] = linted.as_array().unwrap().as_slice() else { panic!("{linted}") };
    let shown = text(browser, "profile-problems");
    let expected = format!(
        "error line {}, column {}: {}{}",
        problem["line"],
        problem["column"],
        problem["message"].as_str().unwrap(),
        problem["help"].as_str().unwrap()
    );
    assert_eq!(shown, expected);
    is_accessible(browser, "with a problem");

    browser.click("#profile-problems button");
    let selected =
        "const area = document.activeElement; return area.value.slice(area.selectionStart, area.selectionEnd)";
    assert_eq!(browser.run(selected), "activaton");
    browser.run("document.getElementById('share').focus()");
    browser.press([key::F8]);
    assert_eq!(browser.run(selected), "activaton");
    retype(browser, "profile", PROFILE);
    wait_for_text(browser, "outcomes", "Injected");
}

/// If the page cannot use a response, it reports this, and not that the server is unreachable.
fn server_errors(browser: &Browser) {
    for (answer, message) in [
        (json!({"diagnostics": [], "result": null}), "neither a result nor an error"),
        (json!({"diagnostics": [], "result": {}}), "cannot show the response"),
    ] {
        browser.run(&format!(
            "const real = window.fetch;
             window.fetch = async () => {{
               window.fetch = real;
               return new Response({});
             }}",
            json!(answer.to_string())
        ));
        retype(browser, "profile", &PROFILE.replace("typed-in", "other"));
        wait_for_text(browser, "status", message);
        wait_for_text(browser, "outcomes", "Not run");
        retype(browser, "profile", PROFILE);
        wait_for_text(browser, "outcomes", "Injected");
    }
}

/// Delays the next response until a script calls `window.go` in the page.
fn hold_next_response(browser: &Browser) {
    browser.run(
        "const real = window.fetch;
         delete window.go;
         window.fetch = async (address, options) => {
           window.fetch = real;
           const answer = await real(address, { ...options, signal: undefined });
           await new Promise((go) => (window.go = go));
           return answer;
         }",
    );
}

/// A late response must not replace the result of a newer one.
fn newest_response_wins(browser: &Browser) {
    hold_next_response(browser);
    retype(browser, "profile", &PROFILE.replace("typed-in", "older"));
    browser.until("a response is held back", "return window.go !== undefined");
    retype(browser, "profile", &PROFILE.replace("typed-in", "newer"));
    wait_for_text(browser, "injected-panel", "newer");
    browser.run("window.go()");
    // By the time this script returns, the page would have shown the late response.
    browser.run("return new Promise((done) => setTimeout(done))");
    assert!(text(browser, "injected-panel").contains("newer"));
    retype(browser, "profile", PROFILE);
    wait_for_text(browser, "injected-panel", "typed-in");
}

fn nothing_becomes_html(browser: &Browser) {
    retype(browser, "profile", &PROFILE.replace("typed-in", "<img src=x onerror=alert(1)>"));
    browser.until("a response", DONE);
    browser.until("HTML is shown as text", "return document.querySelector('.paint').textContent.includes('<img')");
    assert_eq!(browser.all("main img, main script").len(), 0);
    retype(browser, "profile", PROFILE);
    wait_for_text(browser, "outcomes", "Injected");
}

/// The Tab key reaches all controls, but only one tab of each group of tabs. Each control shows its focus, and Tab can
/// leave each control.
fn keyboard(browser: &Browser) {
    browser.run("document.activeElement.blur(); window.getSelection().removeAllRanges()");
    browser.click("h1");
    let mut passed = Vec::new();
    for _ in 0..40 {
        browser.press([key::TAB]);
        let focused = browser.run(FOCUSED).as_str().unwrap().to_owned();
        if focused == "BODY" || passed.first() == Some(&focused) {
            break;
        }
        let is_shown = "const shows = (element) => { const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
                        return (outlineStyle !== 'none' && parseFloat(outlineWidth) > 0) || boxShadow !== 'none' };
                        const at = document.activeElement; return shows(at) || shows(at.parentElement) || shows(at.closest('.switch') ?? at)";
        assert_eq!(browser.run(is_shown), true, "the focus on {focused} is invisible");
        passed.push(focused);
    }
    for control in
        ["examples", "share", "help", "profile", "object-tab", "object", "injected-tab", "copy", "injected-panel"]
    {
        assert!(passed.iter().any(|one| one == control), "{control} is not reached: {passed:?}");
    }
    assert!(!passed.iter().any(|one| one == "diff-tab"), "Tab reaches one tab, arrow keys the others: {passed:?}");

    // Before the heading, Tab reaches a link that skips the header of the page.
    browser.run("document.activeElement.blur()");
    browser.click("h1");
    browser.press_with(key::SHIFT, key::TAB);
    browser.press([key::ENTER]);
    assert_eq!(browser.run(FOCUSED), "profile");

    // In an edited field, Tab indents the line. Esc followed by Tab leaves the field.
    browser.click("#profile");
    browser.press_with(key::CONTROL, key::END);
    browser.press([key::ENTER, '#', key::TAB, 'x']);
    wait_for_text(browser, "profile-problems", "");
    let value = browser.run("return document.getElementById('profile').value");
    assert!(value.as_str().unwrap().ends_with("\n#  x"), "{value}");
    browser.press([key::ESCAPE, key::TAB]);
    assert_ne!(browser.run(FOCUSED), "profile");
    browser.press_with(key::SHIFT, key::TAB);
    assert_eq!(browser.run(FOCUSED), "profile");
    browser.press([key::TAB]);
    assert_ne!(browser.run(FOCUSED), "profile", "Tab leaves an unedited field");
}

fn tabs(browser: &Browser) {
    let state = || {
        let chosen = "return [...document.querySelectorAll('.result [role=tab]')].map((tab) => [tab.id, tab.getAttribute('aria-selected') === 'true' && !document.getElementById(tab.getAttribute('aria-controls')).hidden]).filter(([, is]) => is).map(([id]) => id).join()";
        browser.run(chosen).as_str().unwrap().to_owned()
    };
    browser.click("#injected-tab");
    for (pressed, expected) in [
        (key::RIGHT, "diff-tab"),
        (key::RIGHT, "patch-tab"),
        (key::END, "explanation-tab"),
        (key::RIGHT, "injected-tab"),
        (key::LEFT, "explanation-tab"),
        (key::HOME, "injected-tab"),
        (key::END, "explanation-tab"),
    ] {
        browser.press([pressed]);
        assert_eq!((state(), browser.run(FOCUSED).as_str().unwrap()), (expected.to_owned(), expected));
    }
    is_accessible(browser, "with the explanation");
    browser.press([key::TAB]);
    let focused = browser.run(FOCUSED);
    assert!(focused == "copy" || focused == "explanation-panel", "{focused}");
    browser.click("#help");
    assert_eq!(browser.run("return document.getElementById('keys').open"), true);
    browser.press([key::ESCAPE]);
    assert_eq!(browser.run("return document.getElementById('keys').open"), false);
}

fn themes(browser: &Browser) {
    let ground = "return getComputedStyle(document.body).backgroundColor";
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.emulate("prefers-color-scheme", scheme);
        grounds.push(browser.run(ground));
        for tab in ["injected", "diff", "patch", "explanation"] {
            browser.click(&format!("#{tab}-tab"));
            is_legible(browser, &format!("{tab}, {scheme}"));
        }
        retype(browser, "profile", &PROFILE.replace("activation", "activaton"));
        wait_for_text(browser, "outcomes", "Not run");
        is_legible(browser, &format!("with a problem, {scheme}"));
        retype(browser, "profile", PROFILE);
        wait_for_text(browser, "outcomes", "Injected");
    }
    assert_ne!(grounds[0], grounds[1]);
    // The theme switch overrides the system's theme, and the page stores the choice.
    browser.click("[name=theme][value=light] + span");
    assert_eq!(browser.run(ground), grounds[0]);
    browser.refresh();
    browser.until("the page loads again", DONE);
    assert_eq!(browser.run(ground), grounds[0]);
    wait_for_text(browser, "injected-panel", "typed-in");
    browser.click("[name=theme][value=auto] + span");
    assert_eq!(browser.run(ground), grounds[1]);

    browser.emulate("prefers-reduced-motion", "reduce");
    let moving = "return [...document.querySelectorAll('*')].filter((element) => parseFloat(getComputedStyle(element).transitionDuration) > 0).length";
    assert_eq!(browser.run(moving), 0);
    browser.emulate("prefers-reduced-motion", "no-preference");
    assert_ne!(browser.run(moving), 0, "without reduced motion, there are transitions");
}

fn links(browser: &Browser, dev: &Dev) {
    browser.click("#share");
    let link = browser.until("a link", "return location.hash.startsWith('#v1.') && location.href");
    browser.run("sessionStorage.clear()");
    let link = link.as_str().unwrap();
    browser.open("about:blank");
    browser.open(link);
    // Other pages can link here. So each time, the user sees the content of the link before it runs.
    for again in [link, &dev.url()] {
        expect_link_held(browser);
        browser.open("about:blank");
        browser.open(again);
    }
    expect_link_held(browser);
    is_accessible(browser, "with the content of a link");
    browser.click("#run");
    wait_for_text(browser, "injected-panel", "typed-in");
    assert_eq!(browser.run("return document.getElementById('linked').hidden"), true);
    // If the user has run the same content before, it runs at once.
    browser.open("about:blank");
    browser.open(link);
    wait_for_text(browser, "injected-panel", "typed-in");
    // Pressing a key in the editor also runs the content, like the button.
    browser.run("sessionStorage.clear()");
    browser.open("about:blank");
    browser.open(link);
    expect_link_held(browser);
    browser.click("#profile");
    browser.press_with(key::CONTROL, key::END);
    browser.press([key::ENTER]);
    wait_for_text(browser, "injected-panel", "typed-in");
    // The page ignores broken links.
    for wrong in ["#v1.", "#v1.AAAA", "#v1.%%%", "#v2.x"] {
        browser.run("sessionStorage.clear()");
        browser.open("about:blank");
        browser.open(&format!("{}{wrong}", dev.url()));
        wait_for_text(browser, "injected-panel", "sidecar-nginx");
    }
}

/// Waits until the page shows the content of a link, and checks that the page has not run it.
fn expect_link_held(browser: &Browser) {
    browser.until("a link's content is shown", "return document.body.dataset.state === 'held'");
    let state = browser.run(
        "const asked = performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/playground/run'));
         return [asked.length, document.getElementById('linked').hidden, document.getElementById('profile').value]",
    );
    assert_eq!(state, json!([0, false, PROFILE]));
}

/// After the user follows a link on the page or elsewhere, the user can restore their own content.
fn own_content_is_restorable(browser: &Browser, dev: &Dev) {
    retype(browser, "profile", PROFILE);
    wait_for_text(browser, "injected-panel", "typed-in");
    browser.click("#share");
    let link = browser.until("a link", "return location.hash.startsWith('#v1.') && location.hash");
    let link = link.as_str().unwrap();
    let mine = PROFILE.replace("typed-in", "mine");
    for is_in_page in [true, false] {
        retype(browser, "profile", &mine);
        wait_for_text(browser, "injected-panel", "mine");
        if is_in_page {
            browser.run(&format!("location.hash = '{link}'"));
        } else {
            browser.open("about:blank");
            browser.open(&format!("{}{link}", dev.url()));
        }
        browser.until("the link's content", "return document.body.dataset.state === 'held'");
        assert_eq!(browser.run("return document.getElementById('profile').value"), PROFILE);
        browser.click("#restore");
        wait_for_text(browser, "injected-panel", "mine");
        assert_eq!(browser.run("return document.getElementById('profile').value"), json!(mine));
    }
    // The user's own content has not changed.
    choose(browser, "istio");
    wait_for_text(browser, "injected-panel", "istio-proxy");
    browser.click("#restore");
    wait_for_text(browser, "injected-panel", "mine");
}

fn narrow(browser: &Browser) {
    for width in [1000, 400] {
        let metrics = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        browser.devtools("Emulation.setDeviceMetricsOverride", &metrics);
        is_legible(browser, &format!("{width} wide"));
    }
}

fn pictures() -> [(&'static str, PathBuf); 2] {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    ["light", "dark"].map(|theme| (theme, images.join(format!("playground-{theme}.png"))))
}

#[test]
#[ignore = "writes the pictures of the docs: just screenshots"]
fn writes_small_screenshots() {
    let programs = programs();
    let dev = Dev::start(&["--profile", "profiles"]);
    let browser = Browser::start(&programs, 1440, 900);
    browser.open(&dev.url());
    browser.until("the first example", DONE);
    browser.run(
        "const list = document.getElementById('examples');
             list.value = [...list.options].find((option) => option.text === 'cloud-sql-proxy').value;
             list.dispatchEvent(new Event('change'))",
    );
    wait_for_text(&browser, "injected-panel", "cloud-sql-proxy");
    for (theme, file) in pictures() {
        browser.emulate("prefers-color-scheme", theme);
        if theme == "dark" {
            browser.click("#explanation-tab");
        }
        browser.run("document.activeElement.blur()");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, browser.picture()).unwrap();
    }
    for (_, file) in pictures() {
        let picture = fs::read(&file).unwrap();
        assert!(picture.starts_with(b"\x89PNG"), "{}", file.display());
        let size = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
        assert_eq!((size(16), size(20)), (1440, 900), "{}", file.display());
        assert!(picture.len() < 300 * 1024, "{} has {} bytes", file.display(), picture.len());
    }
}
