//! Renders kubeconfigs for kubectl and client libraries as JSON, which is valid YAML.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The identity with which a client authenticates.
#[derive(Debug, Clone)]
pub(crate) enum Identity<'a> {
    /// A bearer token.
    Token(&'a str),
    /// A bearer token, and a user to impersonate.
    Impersonation {
        /// The token of a user with permission to impersonate.
        token: &'a str,
        /// The impersonated user.
        user: &'a str,
        /// The impersonated groups, in addition to `system:authenticated`.
        groups: &'a [&'a str],
    },
}

/// Returns a kubeconfig with one context, for the API server at the URL `server`.
pub(crate) fn render(server: &str, ca_pem: &str, identity: &Identity<'_>) -> String {
    let user: Value = match identity {
        Identity::Token(token) => json!({ "token": token }),
        Identity::Impersonation { token, user, groups } => {
            json!({ "token": token, "as": user, "as-groups": groups })
        }
    };
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "test",
            "cluster": { "server": server, "certificate-authority-data": STANDARD.encode(ca_pem) },
        }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "current-context": "test",
    });
    format!("{document:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_libraries_read_kubeconfig() {
        let identity = Identity::Impersonation { token: "t", user: "alice", groups: &["devs"] };
        let text = render("https://10.0.0.1:6443", "the CA", &identity);
        let read = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.impersonate.as_deref(), Some("alice"));
        assert_eq!(user.impersonate_groups.as_deref(), Some(&["devs".to_owned()][..]));
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://10.0.0.1:6443"));
    }
}
