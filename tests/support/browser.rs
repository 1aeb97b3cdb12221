//! A real browser: Debian's Chromium without a window, driven by WebDriver (<https://www.w3.org/TR/webdriver2/>).

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::node::wait_for;
use super::skip::{is_left_to_make_test, skip};

/// The keys that WebDriver has letters for.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";

/// The time that one command may take.
const COMMAND: Duration = Duration::from_secs(60);

/// A browser with one window.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser; `None`, and the test is skipped, if there is none.
    pub fn start() -> Option<Self> {
        if is_left_to_make_test() {
            return None;
        }
        if Command::new("chromedriver").arg("--version").output().is_err() {
            skip("no chromedriver: 'make packages' installs it as root");
            return None;
        }
        let (driver, port) = (0..10).find_map(|_| start_driver()).expect("a chromedriver that has found a port");
        let mut browser = Self { driver, port, session: String::new() };
        let options = json!({"args": ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--disable-dev-shm-usage"]});
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}});
        browser.session = browser.send("POST", "/session", &wanted)["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    /// Sends one command; returns its value.
    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(COMMAND)).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = BufReader::new(stream);
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| !line.trim().is_empty()) {
            let mut line = String::new();
            assert!(answer.read_line(&mut line).unwrap() > 0, "{method} {path}: no answer");
            lines.push(line.to_lowercase());
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap();
        let mut content = vec![0; length];
        answer.read_exact(&mut content).unwrap();
        let content = String::from_utf8(content).unwrap();
        assert!(lines[0].starts_with("http/1.1 200"), "{method} {path} {body}: {content}");
        serde_json::from_str::<Value>(&content).unwrap()["value"].take()
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send(method, &format!("/session/{}{path}", self.session), body)
    }

    pub fn open(&self, url: &str) {
        self.command("POST", "/url", &json!({"url": url}));
    }

    /// Runs the body of a function in the page; a promise is awaited.
    pub fn script(&self, body: &str) -> Value {
        self.command("POST", "/execute/sync", &json!({"script": body, "args": []}))
    }

    /// Waits until an expression has a value that passes.
    pub async fn wait(&self, what: &str, expression: &str, passes: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, || self.script(&format!("return {expression}")), passes).await
    }

    /// Presses keys where the focus is.
    pub fn press(&self, keys: &str) {
        let active = self.command("GET", "/element/active", &Value::Null);
        let element = active.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned();
        self.command("POST", &format!("/element/{element}/value"), &json!({"text": keys}));
    }

    /// Sets the size of the window, and which colours its user prefers: `light` or `dark`.
    pub fn emulate(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        for (name, parameters) in [("Emulation.setDeviceMetricsOverride", size), ("Emulation.setEmulatedMedia", media)]
        {
            self.command("POST", "/goog/cdp/execute", &json!({"cmd": name, "params": parameters}));
        }
    }

    /// Returns what axe-core finds inaccessible, a line each.
    pub fn inaccessible(&self) -> Vec<String> {
        let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers/node/node_modules/axe-core/axe.min.js");
        let axe =
            fs::read_to_string(&axe).unwrap_or_else(|error| panic!("{}: {error}: run 'make peers'", axe.display()));
        let run = "return axe.run().then((found) => found.violations.map(({id, nodes}) => `${id}: ${nodes.map((node) => node.html)}`))";
        let found = self.script(&format!("{axe};{run}"));
        found.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
    }

    /// Writes a picture of the window into the directory that `AKRI_SCREENSHOTS` names, if it names one.
    pub fn picture(&self, name: &str) {
        let Some(directory) = std::env::var_os("AKRI_SCREENSHOTS") else { return };
        let encoded = self.command("GET", "/screenshot", &Value::Null);
        let bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, encoded.as_str().unwrap()).unwrap();
        fs::write(Path::new(&directory).join(name), bytes).unwrap();
    }
}

/// Starts a driver on a free port. It ends at once if another program takes that at the same time.
fn start_driver() -> Option<(Child, u16)> {
    let mut command = Command::new("chromedriver");
    let mut driver = command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
    let port = lines.find_map(|line| line.strip_suffix('.')?.rsplit_once("on port ")?.1.parse().ok());
    if port.is_none() {
        driver.wait().unwrap();
    }
    Some((driver, port?))
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // Else the browser stays when its driver ends. A test that failed may have left it in any state.
            let _ = catch_unwind(AssertUnwindSafe(|| self.command("DELETE", "", &Value::Null)));
        }
        let _ = self.driver.kill(); // it may have ended
        let _ = self.driver.wait();
    }
}
