//! Controls a browser with W3C `WebDriver`, using the commands that the tests need.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::playground::send;
use crate::support::eventually;

/// The JSON key with which `WebDriver` identifies an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The characters with which `WebDriver` identifies keys that produce no character.
pub(crate) mod key {
    pub(crate) const TAB: char = '\u{e004}';
    pub(crate) const ENTER: char = '\u{e007}';
    pub(crate) const SHIFT: char = '\u{e008}';
    pub(crate) const CONTROL: char = '\u{e009}';
    pub(crate) const ESCAPE: char = '\u{e00c}';
    pub(crate) const END: char = '\u{e010}';
    pub(crate) const HOME: char = '\u{e011}';
    pub(crate) const LEFT: char = '\u{e012}';
    pub(crate) const RIGHT: char = '\u{e014}';
    pub(crate) const F8: char = '\u{e038}';
}

/// A browser with one page. The browser is stopped when this value is dropped.
pub(crate) struct Browser {
    driver: Child,
    address: String,
    session: String,
    /// The folder of the browser's user profile, which is empty at first.
    _folder: tempfile::TempDir,
}

/// An element of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element(String);

/// Returns the paths of Chromium and of its driver.
pub(crate) fn programs() -> (PathBuf, PathBuf) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/tools/chromium.sh");
    let output = Command::new(script).arg("--if-there").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut paths = printed.lines().map(PathBuf::from);
    match (output.status.success(), paths.next(), paths.next()) {
        (true, Some(browser), Some(driver)) => (browser, driver),
        _ => panic!("no browser: {}; run `just browser`", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

impl Browser {
    /// Starts the driver and the browser, with a window of this size.
    pub(crate) fn start((browser, driver): &(PathBuf, PathBuf), width: u32, height: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut driver = Command::new(driver)
            .arg("--port=0")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (found, port) = mpsc::channel();
        // All output is read, because a full pipe would block the driver.
        std::thread::spawn(move || {
            for line in lines {
                if let Some((_, port)) = line.split_once("successfully on port ") {
                    let _ = found.send(port.trim_end_matches('.').to_owned());
                }
            }
        });
        let port = port.recv_timeout(Duration::from_secs(30)).expect("the driver printed no port");
        let address = format!("127.0.0.1:{port}");
        let mut browser_options = json!({
            "binary": browser,
            "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
                "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
                "--disable-default-apps", "--no-default-browser-check", "--force-color-profile=srgb", "--lang=en",
                // Prevents requests that the browser itself sends to other hosts.
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
                format!("--user-data-dir={}", folder.path().join("profile").display()),
                format!("--window-size={width},{height}"),
            ],
        });
        browser_options["perfLoggingPrefs"] = json!({"enableNetwork": true});
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": browser_options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let mut started = Self { driver, address, session: String::new(), _folder: folder };
        let session = started.post("/session", &capabilities);
        started.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        // The size of the page itself is emulated, since even a headless window may have a frame.
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        started.devtools("Emulation.setDeviceMetricsOverride", &metrics);
        started
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let text = if method == "POST" { body.to_string() } else { String::new() };
        let headers = format!("host: {}\r\ncontent-type: application/json\r\n", self.address);
        let answer = send(&self.address, &format!("{method} {path}"), &headers, text.as_bytes());
        let value = answer.json()["value"].clone();
        assert_eq!(answer.status, 200, "{method} {path} {text}: {}", value["message"]);
        value
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    fn get(&self, path: &str) -> Value {
        self.ask("GET", &format!("{}{path}", self.session), &Value::Null)
    }

    /// Sends a `DevTools` command, for functions that are not part of `WebDriver`.
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
    }

    /// Sets a media feature, such as `prefers-color-scheme`.
    pub(crate) fn emulate(&self, feature: &str, value: &str) {
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": [{"name": feature, "value": value}]}));
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    pub(crate) fn refresh(&self) {
        self.post("/refresh", &json!({}));
    }

    /// Runs a function body in the page, and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Returns the elements that match a CSS selector.
    pub(crate) fn all(&self, selector: &str) -> Vec<Element> {
        let found = self.post("/elements", &json!({"using": "css selector", "value": selector}));
        found.as_array().unwrap().iter().map(Element::of).collect()
    }

    /// Returns the first element that matches a CSS selector.
    pub(crate) fn one(&self, selector: &str) -> Element {
        self.all(selector).into_iter().next().unwrap_or_else(|| panic!("no element {selector}"))
    }

    pub(crate) fn click(&self, selector: &str) {
        self.post(&format!("/element/{}/click", self.one(selector).0), &json!({}));
    }

    /// Returns the accessible name and the ARIA role of an element.
    pub(crate) fn label_and_role(&self, element: &Element) -> (String, String) {
        let text = |what: &str| self.get(&format!("/element/{}/{what}", element.0)).as_str().unwrap().to_owned();
        (text("computedlabel"), text("computedrole"))
    }

    /// Presses keys one after another.
    pub(crate) fn press(&self, keys: impl IntoIterator<Item = char>) {
        let presses = keys.into_iter().flat_map(|key| [("keyDown", key), ("keyUp", key)]);
        self.keys(&presses.map(|(what, key)| json!({"type": what, "value": key.to_string()})).collect::<Vec<_>>());
    }

    /// Presses a key while holding another one.
    pub(crate) fn press_with(&self, held: char, key: char) {
        let presses = [("keyDown", held), ("keyDown", key), ("keyUp", key), ("keyUp", held)];
        self.keys(&presses.map(|(what, key)| json!({"type": what, "value": key.to_string()})));
    }

    fn keys(&self, actions: &[Value]) {
        self.post("/actions", &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}));
    }

    /// Waits until a script returns a value that is neither null nor false.
    pub(crate) fn until(&self, what: &str, script: &str) -> Value {
        eventually(what, || Some(self.run(script)).filter(|found| !found.is_null() && *found != Value::Bool(false)))
    }

    /// Returns a screenshot of the page, as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        STANDARD.decode(self.get("/screenshot").as_str().unwrap()).unwrap()
    }

    /// Returns the log entries since the last call. The log `browser` contains messages of the console, and the log
    /// `performance` contains all requests.
    pub(crate) fn log(&self, kind: &str) -> Vec<Value> {
        self.post("/se/log", &json!({"type": kind})).as_array().unwrap().clone()
    }

    /// Returns the URLs that were requested since the last call.
    pub(crate) fn requested(&self) -> Vec<String> {
        let events = self.log("performance").into_iter().map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            message["message"].clone()
        });
        let sent = events.filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned()).collect()
    }
}

impl Element {
    fn of(value: &Value) -> Self {
        Self(value[ELEMENT].as_str().unwrap().to_owned())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Deleting the session stops the browser. If a test has failed, the driver may have exited already.
        if let (false, Ok(mut stream)) = (self.session.is_empty(), TcpStream::connect(&self.address)) {
            let request =
                format!("DELETE {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.session, self.address);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut Vec::new()));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
