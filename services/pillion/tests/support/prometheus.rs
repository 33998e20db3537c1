//! A real Prometheus that scrapes every second, and functions to query it.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pillion_testkit::tools;
use serde_json::Value;

/// Time limit for Prometheus to start.
const LIMIT: Duration = Duration::from_mins(1);

/// A running Prometheus. Its process is killed when this value is dropped.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these addresses every second.
    pub(crate) fn scraping(targets: &[&str]) -> Self {
        Self::with(
            &format!("scrape_configs: [{{job_name: pillion, static_configs: [{{targets: {targets:?}}}]}}]\n"),
            &[],
        )
    }

    /// Starts a Prometheus with this additional configuration, and with these files in its folder.
    pub(crate) fn with(config: &str, files: &[(&str, &str)]) -> Self {
        // Another process may take the free port first. In that case, Prometheus exits at once, and another port is
        // tried.
        let mut ended = Vec::new();
        loop {
            match Self::start(config, files) {
                Ok(started) => return started,
                Err(log) => ended.push(log),
            }
            assert!(ended.len() < 5, "Prometheus exits: {ended:#?}");
        }
    }

    /// Starts Prometheus. Returns its log as the error if it exits.
    fn start(config: &str, files: &[(&str, &str)]) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let global = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n";
        for (name, text) in files.iter().chain(&[("prometheus.yml", &*format!("{global}{config}"))]) {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new(tools::program("prometheus").unwrap())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--enable-feature=exemplar-storage"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut prometheus = Self { child, address, folder };
        let end = Instant::now() + LIMIT;
        while prometheus.get("/-/ready").is_none_or(|(status, _)| status != 200) {
            if prometheus.child.try_wait().unwrap().is_some() {
                return Err(prometheus.log());
            }
            assert!(Instant::now() < end, "Prometheus is not ready within {LIMIT:?}: {}", prometheus.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(prometheus)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the status and the body of the response to a GET request, or `None` if there is no response.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        // With HTTP/1.0, the end of the connection is the end of the body.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.address).as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split_whitespace().nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// Returns the data of an API response, or the error message of the API.
    pub(crate) fn api(&self, path: &str, query: &str) -> Result<Value, String> {
        let (_, body) = self.get(&format!("/api/v1/{path}query={}", encoded(query))).unwrap();
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        let part = |name| answer.get(name).cloned().unwrap_or_default();
        if part("status") == "success" { Ok(part("data")) } else { Err(part("error").to_string()) }
    }

    /// Returns the values in a query's result, or the error message of the API.
    pub(crate) fn query(&self, query: &str) -> Result<Vec<f64>, String> {
        let data = self.api("query?", query)?;
        let found = data.get("result").and_then(Value::as_array).ok_or_else(|| format!("not a vector: {data}"))?;
        let value = |sample: &Value| sample.pointer("/value/1")?.as_str()?.parse().ok();
        found.iter().map(|sample| value(sample).ok_or_else(|| format!("not a number: {sample}"))).collect()
    }

    /// Returns the labels of each firing alert.
    pub(crate) fn firing(&self) -> Vec<Value> {
        let data = self.api("alerts?", "").unwrap();
        let alerts = data.get("alerts").and_then(Value::as_array).cloned().unwrap_or_default();
        let firing = alerts.into_iter().filter(|alert| alert.get("state").is_some_and(|state| state == "firing"));
        firing.map(|mut alert| alert.get_mut("labels").map(Value::take).unwrap_or_default()).collect()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |text, byte| {
        if byte.is_ascii_alphanumeric() {
            text + char::from(byte).encode_utf8(&mut [0])
        } else {
            text + &format!("%{byte:02X}")
        }
    })
}
