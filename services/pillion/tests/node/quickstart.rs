//! Follows `docs/quickstart.md` from `helm install` to the output of the sidecar, and creates the first pod of
//! `docs/install.md`. The node cannot reach a registry, so replacements are imported under the names of the public
//! images.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pillion_testkit::image::Image;
use pillion_testkit::{cluster, eventually, tools};

use crate::platform::{Platform, SOON, is_injected, is_ready, on_a_node};

/// The time limit of the quickstart, starting with `helm install`. It allows for a busy machine: the page promises five
/// minutes.
const LIMIT: Duration = Duration::from_mins(10);
/// A regular expression for the commands of the page that this test skips, because the cluster, the image and the
/// program already exist.
const SKIPPED: &str = "^(just|kind|export) |oci://";
/// The program of a web server that stands in for nginx. [`PAGE`] answers its requests, and logs them in nginx's format
/// to nginx's log file.
const NGINX: &str = "#!/sh
trap 'exit 0' TERM
httpd -f -p 80 -h /www &
wait
";
const PAGE: &str = r#"#!/sh
echo "$REMOTE_ADDR - - [$(date '+%d/%b/%Y:%H:%M:%S %z')] \"$REQUEST_METHOD / $SERVER_PROTOCOL\" 200 3 \"-\" \"$HTTP_USER_AGENT\" \"-\"" \
  >>/var/log/nginx/access.log
printf 'Content-Type: text/plain\r\n\r\nok\n'
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Imports replacements for the public images of both pages, and Pillion's image under the chart's default name.
fn import(platform: &Platform) -> Result<()> {
    let busybox = cluster::busybox()?;
    let folder = tempfile::tempdir()?;
    let script = |name: &str, text: &str| -> Result<PathBuf> {
        let file = folder.path().join(name);
        std::fs::write(&file, text)?;
        Ok(file)
    };
    platform.import_pillion(&format!("docker.io/library/pillion:{}", env!("CARGO_PKG_VERSION")))?;
    platform.import_idle("registry.k8s.io/pause:3.10")?;
    let shell = |image: Image| image.file("/sh", &busybox);
    platform.import_image(shell(Image::new("docker.io/library/busybox:1.37", "/sh")?)?.file("/tail", &busybox)?)?;
    let nginx = shell(Image::new("docker.io/library/nginx:1.29", "/nginx")?)?;
    let nginx = nginx.file("/nginx", &script("nginx", NGINX)?)?;
    platform.import_image(nginx.file("/www/cgi-bin/index.cgi", &script("index.cgi", PAGE)?)?)
}

/// Follows the page in the same way as `just quickstart`. Returns the output.
async fn follow(platform: &Platform) -> Result<String> {
    let mut path = vec![PathBuf::from(env!("CARGO_BIN_EXE_pillion"))];
    path.extend([tools::program("kubectl")?, tools::program("helm")?]);
    let mut path: Vec<_> = path.iter().filter_map(|program| program.parent()).map(Path::to_owned).collect();
    path.extend(std::env::split_paths(&std::env::var_os("PATH").context("PATH")?));
    let mut script = tokio::process::Command::new("bash");
    script.arg(root().join("services/testkit/tools/quickstart.sh")).arg(SKIPPED);
    script.env("KUBECONFIG", platform.cluster.kubeconfig()).env("PATH", std::env::join_paths(path)?);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        script.env(variable, platform.cluster.home().join("helm"));
    }
    let output = tokio::time::timeout(LIMIT, script.kill_on_drop(true).output()).await.context("it does not end")??;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(output.status.success(), "the quickstart failed:\n{text}");
    Ok(text)
}

/// Returns the file `name` from a page: the block that begins with a comment with this name.
fn file_of(page: &str, name: &str) -> Result<String> {
    let text = std::fs::read_to_string(root().join("docs").join(page))?;
    let (_, rest) = text.split_once(&format!("```yaml\n# {name}\n")).with_context(|| format!("{name} in {page}"))?;
    Ok(rest.split("\n```").next().unwrap_or_default().to_owned())
}

#[test]
#[ignore = "needs a real node: just node"]
fn first_pods_of_the_docs_run() {
    on_a_node(async |platform| {
        import(platform)?;
        let begun = Instant::now();
        let output = follow(platform).await?;
        println!("{output}\nfrom helm install to the output of the sidecar: {:.1?}", begun.elapsed());
        ensure!(output.contains("kube-probe/"), "the sidecar printed no request:\n{output}");

        platform.namespace("trial", "enabled").await?;
        let profile = std::fs::read_to_string(root().join("profiles/nginx/profile.yaml"))?;
        platform.kubectl_with_input(&["apply", "-f", "-"], &profile).await?;
        platform.injects("trial").await?;
        platform.kubectl_with_input(&["apply", "-f", "-"], &file_of("install.md", "pod.yaml")?).await?;
        eventually(SOON, "the first pod of docs/install.md runs", async || {
            let pod = platform.pods("trial").get("web").await?;
            ensure!(is_injected(&pod), "without the sidecar: {pod:?}");
            is_ready(&pod)
        })
        .await
    });
}
