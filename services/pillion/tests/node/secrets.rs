//! Tests that the profile `vault-agent` passes secrets to an application as environment variables: the agent writes a
//! file that the application does not mount, and a real kubelet reads it.
//!
//! A script stands in for the agent. It writes what a real agent would write for the template in its configuration.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{LogParams, PostParams};
use pillion_testkit::image::Image;
use pillion_testkit::{cluster, eventually};
use serde_json::json;

use crate::platform::{Platform, SOON, on_a_node};

const AGENT_IMAGE: &str = "local.test/vault:1";
const APP_IMAGE: &str = "local.test/shell:1";

/// A secret with characters that shells and env files treat specially.
const PASSWORD: &str = r#"a $HOME # "7"\n="#;

/// The script in place of the agent. It fails unless the configuration names the secret and the file.
fn agent() -> String {
    format!(
        "#!/bin/sh\n\
         set -eu\n\
         config=/home/vault/config.json\n\
         grep -q kv/data/db $config && grep -q /vault/agent-env/env $config\n\
         umask 077\n\
         cat > /vault/agent-env/env <<'END'\n\
         DB_PASSWORD='{PASSWORD}'\n\
         DB_USER='shop'\n\
         END\n"
    )
}

/// Imports the image of the agent, and that of the application, which only prints a variable.
fn import(platform: &Platform) -> Result<()> {
    let (home, busybox) = (platform.cluster.home(), cluster::busybox()?);
    let script = home.join("vault");
    std::fs::write(&script, agent())?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let programs = ["/bin/sh", "/bin/base64", "/bin/grep", "/bin/cat"];
    let agent = Image::new(AGENT_IMAGE, "/bin/sh")?.file("/bin/vault", &script);
    platform.import_image(programs.into_iter().try_fold(agent?, |image, path| image.file(path, &busybox))?)?;
    let pause = cluster::pause(home)?;
    platform.import_image(Image::new(APP_IMAGE, "/sh")?.file("/sh", &busybox)?.file("/pause", &pause)?)
}

/// Returns a pod whose application prints its database URL. The URL refers to the two variables.
fn pod() -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "web", "annotations": {
            "vault.hashicorp.com/agent-inject": "true",
            "vault.hashicorp.com/agent-pre-populate-only": "true",
            "vault.hashicorp.com/agent-image": AGENT_IMAGE,
            "vault.hashicorp.com/role": "web",
            "vault.hashicorp.com/agent-inject-env-DB_USER": "kv/data/db#user",
            "vault.hashicorp.com/agent-inject-env-DB_PASSWORD": "kv/data/db#password",
        }},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": "app", "image": APP_IMAGE, "imagePullPolicy": "IfNotPresent",
            "env": [{"name": "DB_URL", "value": "postgres://$(DB_USER):$(DB_PASSWORD)@db/shop"}],
            "command": ["/sh", "-c", r#"printf '%s|%s\n' "$DB_URL" "$DB_PASSWORD"; exec /pause"#],
        }]},
    }))?)
}

#[test]
#[ignore = "needs a real node: just node"]
fn secrets_become_environment_variables() {
    on_a_node(async |platform| {
        import(platform)?;
        platform.namespace("shop", "enabled").await?;
        let mut values = Platform::values("one");
        let profiles = json!({"nginx": {}, "vault-agent": {}});
        values.as_object_mut().context("values")?.insert("profiles".to_owned(), profiles);
        platform.helm("install", Some(&values), &["--create-namespace", "--wait", "--timeout=3m"]).await?;
        platform.injects("shop").await?;
        let pods = platform.pods("shop");
        let created = eventually(SOON, "a pod gets the agent", async || {
            let parameters = PostParams { dry_run: true, ..PostParams::default() };
            let found = pods.create(&parameters, &pod()?).await?;
            let init = found.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).next();
            ensure!(init.is_some_and(|init| init.name == "vault-agent-init"), "no agent: {found:?}");
            Ok(pods.create(&PostParams::default(), &pod()?).await?)
        })
        .await?;

        let expected = format!("postgres://shop:{PASSWORD}@db/shop|{PASSWORD}");
        let parameters = LogParams { container: Some("app".to_owned()), ..LogParams::default() };
        eventually(SOON, "the application has the secrets", async || {
            let log = pods.logs("web", &parameters).await?;
            ensure!(log.trim_end() == expected, "the application printed {log:?}, expected {expected:?}");
            Ok(())
        })
        .await?;

        let app = created.spec.iter().flat_map(|spec| &spec.containers).find(|container| container.name == "app");
        let mounts = app.context("no application")?.volume_mounts.iter().flatten();
        let mounts: Vec<_> = mounts.filter(|mount| mount.name == "vault-env").collect();
        ensure!(mounts.is_empty(), "the application mounts the file: {mounts:?}");
        let stored = serde_json::to_string(&pods.get("web").await?)?;
        ensure!(!stored.contains("$HOME # "), "the pod contains the secret: {stored}");
        Ok(())
    });
}
