//! The page in a real browser.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::browser::{Browser, ENTER, TAB};
use crate::support::node::{Node, akri};

/// An expression for the text of all devices.
const DEVICES: &str = "document.getElementById('device-rows').innerText";
const PROBLEMS: &str = "document.getElementById('problems').innerText";

fn has(part: &str) -> impl Fn(&Value) -> bool {
    move |value: &Value| value.as_str().is_some_and(|text| text.contains(part))
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test] // rule 139, threat 70
async fn page_shows_what_is_there_and_why_something_is_not() {
    let Some(browser) = Browser::start() else { return };
    let node = Node::new();
    node.write_echo("cam", 1, &["front", "back"]);
    node.write_configuration("plc", "modbus", "      {}\n", "");
    let address = free_address().to_string();
    let _agent = node.start_with(&["--page", &address]);
    crate::support::node::wait_for("the page", || TcpStream::connect(&address).is_ok(), |is_up| *is_up).await;
    browser.emulate(1100, 800, "light");
    browser.open(&format!("http://{address}/"));
    browser.wait("the devices", DEVICES, |text| has("front")(text) && has("back")(text)).await;
    let shown = browser.wait("the problem", PROBLEMS, has("no discovery handler 'modbus'")).await;
    let why = node.akri(&["why", "plc", "--state-dir", &node.path("state").display().to_string()]);
    let why = String::from_utf8(why.stdout).unwrap();
    let sentence = why.lines().find_map(|line| line.strip_prefix("ends    handler: ")).unwrap();
    assert!(has(sentence)(&shown), "{sentence:?} is not in {shown}");

    browser.script("window.untouched = true");
    node.write_echo("cam", 1, &["front", "side"]);
    browser.wait("a change", DEVICES, |text| has("side")(text) && !has("back")(text)).await;
    assert_eq!(browser.script("return window.untouched"), true, "the page was loaded again");
    for (scheme, width) in [("light", 1100), ("dark", 1100), ("light", 360)] {
        browser.emulate(width, 800, scheme);
        assert_eq!(browser.inaccessible(), Vec::<String>::new(), "{scheme}, {width}");
        let overflows = "return document.documentElement.scrollWidth > innerWidth";
        assert_eq!(browser.script(overflows), false, "{width} pixels are too narrow");
        browser.picture(&format!("page-{scheme}{}.png", if width < 500 { "-phone" } else { "" }));
    }

    let line = "return document.querySelector('#handler-rows polyline').getAttribute('points').split(' ').length > 1";
    assert_eq!(browser.script(line), true, "handlers have no numbers of their devices");
    browser.press(TAB);
    browser.press(ENTER); // on the link that skips to the devices
    browser.press(TAB);
    browser.press("SIDE");
    browser.wait("what was looked for", DEVICES, |text| has("side")(text) && !has("front")(text)).await;
}

/// A page without an agent.
struct Page {
    process: Child,
    address: SocketAddr,
}

impl Page {
    fn of(state: &Path) -> Self {
        let arguments = ["page", "--listen", "127.0.0.1:0", "--state-dir"];
        let mut process = Command::new(akri())
            .args(arguments)
            .arg(state)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap().parse().unwrap();
        Self { process, address }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

/// Writes the state that an agent with many devices would leave, whose names are hostile.
fn write_state(state: &Path, devices: usize) {
    let directory = state.join("instances/default");
    fs::create_dir_all(&directory).unwrap();
    fs::create_dir_all(state.join("configurations/default")).unwrap();
    for number in 0..devices {
        let name = format!("cam-{number:06x}");
        let device = format!("<img src=x onerror='window.attacked=1'>\u{202e}\u{1b}[2J /dev/video{number}");
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "default"},
            "spec": {"configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 1, "shared": false,
                "nodes": ["edge-1"], "brokerProperties": {"UDEV_DEVNODE": device}, "deviceUsage": {}},
        });
        fs::write(directory.join(format!("{name}.json")), object.to_string()).unwrap();
    }
}

#[tokio::test] // threat 71
async fn page_stays_usable_with_hostile_devices_and_silent_readers() {
    let Some(browser) = Browser::start() else { return };
    let state = tempfile::tempdir().unwrap();
    write_state(state.path(), 10_000);
    let page = Page::of(state.path());
    let silent: Vec<TcpStream> = (0..500)
        .map(|_| {
            let mut stream = TcpStream::connect(page.address).unwrap();
            let _ = stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"); // the oldest are closed for others
            stream
        })
        .collect();
    browser.open(&format!("http://localhost:{}/", page.address.port()));
    let place = "document.getElementById('place').textContent";
    browser.wait("the first page", place, has("Page 1 of 100, 10000 devices")).await;
    browser.script("document.getElementById('next').click()");
    browser.wait("the next page", place, has("Page 2 of 100")).await;
    browser.script("document.getElementById('find').focus()");
    browser.press("video9999");
    browser.wait("one of many", place, has("Page 1 of 1, 1 device")).await;
    let shown = browser.wait("it", DEVICES, has("cam-00270f")).await;
    assert!(has("<img src=x onerror=")(&shown) && has("\\u{202e}\\u{1b}")(&shown), "{shown}");
    assert_eq!(browser.script("return window.attacked === undefined && !document.querySelector('img')"), true);
    drop(silent);
}
