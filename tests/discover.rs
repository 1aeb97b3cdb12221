//! `akri discover` goes on watching, and says why a device is found or not.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::node::{Node, akri, all_devices, wait_for};
use crate::support::udev::camera::{Camera, controller};
use crate::support::udev::sysfs::Sysfs;
use crate::support::zram::Zrams;

/// A node and how `akri discover` is called on it.
struct DiscoverFixture {
    node: Node,
    sysfs: PathBuf,
}

impl DiscoverFixture {
    /// With this machine's own devices.
    fn real() -> Self {
        Self { node: Node::new(), sysfs: "/sys".into() }
    }

    /// With a camera in the first port.
    fn with_camera() -> (Self, Sysfs) {
        let node = Node::new();
        let sysfs = Sysfs::new(node.path("sys"));
        controller().iter().chain(&Camera::in_port(1).devices()).for_each(|device| sysfs.add(device));
        (Self { sysfs: sysfs.root().to_owned(), node }, sysfs)
    }

    /// The udev handler sees these subsystems, and looks once an hour: in between, uevents have to tell.
    fn grant(&self, subsystems: &str) {
        let grants = format!("  grants:\n    udev:\n      subsystems: {subsystems}\n{}", all_devices());
        self.node.write_handler("udev", "udev.wasm", &format!("{grants}  interval: 1h\n"));
    }

    /// The Configuration `rules` of the udev handler.
    fn write_rules(&self, rules: &[&str]) {
        let rules: String = rules.iter().map(|rule| format!("      - {rule}\n")).collect();
        self.node.write_configuration("rules", "udev", &format!("      udevRules:\n{rules}"), "");
    }

    fn arguments(&self, configuration: &str, flags: &[&str]) -> Vec<String> {
        let path = |name: &str| self.node.path(name).display().to_string();
        let own = [path(&format!("manifests/{configuration}.yaml")), "--components".to_owned(), path("components")];
        let host = ["--sysfs".to_owned(), self.sysfs.display().to_string(), "--udev-data".to_owned(), path("udev")];
        let fixed = ["--node-name".to_owned(), "node-a".to_owned()];
        let flags = flags.iter().map(ToString::to_string);
        ["discover".to_owned()].into_iter().chain(own).chain(host).chain(fixed).chain(flags).collect()
    }

    fn run(&self, configuration: &str, flags: &[&str]) -> Output {
        let arguments = self.arguments(configuration, flags);
        self.node.akri(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns the explanation for a device, and checks that there is nothing else.
    fn explain(&self, device: &str) -> String {
        let output = self.run("rules", &["--explain", device]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
        String::from_utf8(output.stdout).unwrap()
    }

    fn watch(&self, configuration: &str, flags: &[&str]) -> Watch {
        self.start(configuration, &[&["--watch"], flags].concat())
    }

    fn start(&self, configuration: &str, flags: &[&str]) -> Watch {
        let mut command = Command::new(akri());
        command.args(self.arguments(configuration, flags));
        command.env("XDG_CACHE_HOME", self.node.path("cache")).stdin(Stdio::null());
        Watch::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

/// `akri discover` as a process; killed when this goes.
struct Watch {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    fn of(mut child: Child) -> Self {
        let (lines, log) = (collect(child.stdout.take().unwrap()), collect(child.stderr.take().unwrap()));
        Self { child, lines, log }
    }

    /// Waits for that many lines, and gives them.
    async fn lines(&self, count: usize) -> Vec<String> {
        let observe = || (self.lines.lock().unwrap().clone(), self.log.lock().unwrap().clone());
        wait_for(&format!("{count} lines"), observe, |(lines, _)| lines.len() >= count).await.0
    }

    async fn events(&self, count: usize) -> Vec<Value> {
        self.lines(count).await.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn wait_for_log(&self, times: usize, text: &str) {
        let observe = || self.log.lock().unwrap().clone();
        let wanted = |log: &Vec<String>| log.iter().filter(|line| line.contains(text)).count() >= times;
        wait_for(&format!("'{text}' in the log"), observe, wanted).await;
    }

    fn end(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

fn collect(from: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&lines);
    std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).for_each(|line| copy.lock().unwrap().push(line));
    });
    lines
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The words of a line after its time, which has to be one.
fn words(line: &str) -> Vec<&str> {
    let mut words = line.split(' ');
    let at = words.next().unwrap();
    assert!(at.len() == "2025-01-01T00:00:00.000Z".len() && at.contains('T') && at.ends_with('Z'), "{line}");
    words.collect()
}

/// A device of this machine below another one: its path, that of its parent and the parent's subsystem.
fn real_device_with_a_parent() -> (PathBuf, PathBuf, String) {
    let classes = fs::read_dir("/sys/class").unwrap().map(|class| class.unwrap().path());
    let links = classes.flat_map(|class| fs::read_dir(class).into_iter().flatten()).map(|link| link.unwrap().path());
    let pair = |link: PathBuf| {
        let parent = link.join("device").canonicalize().ok()?;
        let subsystem = parent.join("subsystem").canonicalize().ok()?;
        Some((link.canonicalize().ok()?, parent, name(&subsystem)))
    };
    links.filter_map(pair).find(|(device, parent, _)| device.starts_with(parent)).expect("every machine has one")
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn real_device_is_explained_by_any_name_and_on_its_parent() {
    let fixture = DiscoverFixture::real();
    fixture.write_rules(&[r#"SUBSYSTEM=="tty", KERNEL=="null""#, r#"KERNEL=="nul?", ENV{MINOR}=="3""#]);
    let expected = r#"/devices/virtual/mem/null against default/rules
  rule 1 fails: SUBSYSTEM=="tty", KERNEL=="null"
    fails  SUBSYSTEM=="tty"   it is "mem"
    holds  KERNEL=="null"
  rule 2 holds: KERNEL=="nul?", ENV{MINOR}=="3"
    holds  KERNEL=="nul?"
    holds  ENV{MINOR}=="3"
  found by rule 2
"#;
    for device in ["/dev/null", "null", "/devices/virtual/mem/null", "/sys/class/mem/null"] {
        assert_eq!(fixture.explain(device), expected, "{device}");
    }
    let json = fixture.run("rules", &["--explain", "null", "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&json[0]["device"], &json[0]["configuration"]),
        (&"/devices/virtual/mem/null".into(), &"default/rules".into())
    );
    assert_eq!(json[0]["lines"].as_array().unwrap().len(), expected.lines().count() - 1);

    // Plural matches are on a parent.
    let (device, parent, subsystem) = real_device_with_a_parent();
    let (device, parent) = (device.display().to_string(), parent.display().to_string());
    let kernel = name(Path::new(&parent));
    fixture.write_rules(&[
        &format!(r#"SUBSYSTEMS=="{subsystem}", KERNELS=="{kernel}""#),
        &format!(r#"SUBSYSTEMS=="{subsystem}", KERNELS=="{kernel}", ATTRS{{no such}}=="x""#),
    ]);
    let printed = fixture.explain(&device);
    let on_parent = format!(
        "    on its parent {}:\n      holds  SUBSYSTEMS==\"{subsystem}\"\n      holds  KERNELS==\"{kernel}\"\n",
        parent.trim_start_matches("/sys")
    );
    assert_eq!(printed.matches(&on_parent).count(), 2, "{on_parent}{printed}");
    assert!(printed.contains("\n      fails  ATTRS{no such}==\"x\"   it has no such attribute\n"), "{printed}");
    assert!(printed.contains("  found by rule 1"), "{printed}");
}

#[test]
fn undiscovered_absent_and_hidden_devices_are_explained() {
    let (fixture, _sysfs) = DiscoverFixture::with_camera();
    fixture.write_rules(&[
        r#"SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}=="*:capture:*""#,
        r#"KERNEL=="video[0-9]*", ATTRS{idVendor}=="046d", DRIVERS=="uvcvideo""#,
    ]);
    let camera = Camera::in_port(1).devpath();
    let expected = format!(
        r#"{camera}/1-1:1.0/video4linux/video0 against default/rules
  rule 1 fails: SUBSYSTEM=="video4linux", ENV{{ID_V4L_CAPABILITIES}}=="*:capture:*"
    holds  SUBSYSTEM=="video4linux"
    fails  ENV{{ID_V4L_CAPABILITIES}}=="*:capture:*"   it has no such property
  rule 2 fails: KERNEL=="video[0-9]*", ATTRS{{idVendor}}=="046d", DRIVERS=="uvcvideo"
    holds  KERNEL=="video[0-9]*"
    on its parent {camera}/1-1:1.0:
      fails  ATTRS{{idVendor}}=="046d"   it has no such attribute, but holds on {camera}
      holds  DRIVERS=="uvcvideo"
  not found: no rule holds
"#
    );
    assert_eq!(fixture.explain("/dev/video0"), expected);

    fixture.write_rules(&[r#"SUBSYSTEM=="usb""#]);
    fixture.grant("[video4linux]");
    let hidden = format!(
        "error: default/rules: '{}' is hidden from the handler: its subsystem 'usb' is not granted\n",
        Camera::in_port(1).devpath()
    );
    for (device, expected_text) in [
        ("/dev/video99", "error: no device '/dev/video99' in sysfs\n"),
        ("video", "error: no device 'video' in sysfs\n"),
        ("/sys/class/video4linux", "error: no device '/sys/class/video4linux' in sysfs\n"),
        ("1-1", &hidden),
    ] {
        let output = fixture.run("rules", &["--explain", device]);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), expected_text));
        assert!(output.stdout.is_empty(), "{device}");
    }
    let printed = fixture.explain("video0");
    assert!(printed.contains("fails  SUBSYSTEM==\"usb\"   it is \"video4linux\"\n"), "{printed}");
    // A handler that can't explain says so.
    {
        let fixture = DiscoverFixture::real();
        fixture.write_rules(&[r#"KERNEL=="null""#]);
        fixture.node.write_echo("echo", 1, &["foo0"]);
        let expected_text = "warning: default/echo: the handler 'debugEcho' can't explain what it finds\n";
        let alone = fixture.run("echo", &["--explain", "null"]);
        assert_eq!((alone.status.code(), stderr(&alone).as_str()), (Some(1), expected_text));

        let text = |name: &str| fs::read_to_string(fixture.node.path(&format!("manifests/{name}.yaml"))).unwrap();
        fixture.node.write("manifests/both.yaml", &format!("{}---\n{}", text("echo"), text("rules")));
        let both = fixture.run("both", &["--explain", "null"]);
        assert_eq!((both.status.code(), stderr(&both).as_str()), (Some(0), ""), "one that can is asked alone");
        assert!(both.stdout.starts_with(b"/devices/virtual/mem/null against default/rules\n"));

        fixture.write_rules(&["KERNAL==\"null\""]);
        let bad = fixture.run("rules", &["--explain", "null"]);
        assert!(bad.status.code() == Some(1) && stderr(&bad).contains("did you mean 'KERNEL'?"), "{}", stderr(&bad));
        assert_eq!(fixture.run("rules", &["--explain", "null", "--watch"]).status.code(), Some(2), "one or the other");
    }
}

/// KubeVirt spells the name of a resource in upper case and keeps its hyphens.
#[test] // rule 65
fn variables_of_kubevirt_have_hyphens() {
    let (fixture, _sysfs) = DiscoverFixture::with_camera();
    fixture.grant("[usb]");
    let rules = "      udevRules:\n      - ENV{DEVTYPE}==\"usb_device\", ATTR{idVendor}==\"046d\"\n";
    let resource = "    discoveryProperties:\n    - {name: devicePluginResourceName, value: akri.sh/usb-camera}\n";
    fixture.node.write_configuration("rules", "udev", rules, resource);
    let output = fixture.run("rules", &["-o", "json"]);
    let devices: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(devices[0]["device"]["properties"]["USB_RESOURCE_AKRI_SH_USB-CAMERA"], "1:2", "{devices:#}");
}

#[tokio::test]
async fn watch_shows_a_real_device_going_and_returning() {
    let Some(zrams) = Zrams::claim().await else { return };
    let zram = zrams.plug();
    let fixture = DiscoverFixture::real();
    fixture.grant("[\"*\"]");
    fixture.write_rules(&[&format!(r#"SUBSYSTEM=="block", KERNEL=="{}""#, zram.name())]);
    let (people, programs) = (fixture.watch("rules", &[]), fixture.watch("rules", &["-o", "json"]));
    let table = people.lines(2).await;
    let event = programs.events(1).await.remove(0);
    let resource = event["resource"].as_str().unwrap().to_owned();
    let (node, id) = (format!("/dev/{}", zram.name()), format!("/devices/virtual/block/{}", zram.name()));
    let cells = [resource.as_str(), "default/rules", &node, &id];
    assert_eq!(table[1].split_whitespace().collect::<Vec<_>>(), cells, "{table:?}");

    zram.unplug();
    assert_eq!(words(&people.lines(3).await[2]), ["-", &resource, &node, &id]);
    programs.events(2).await;
    let _again = zrams.plug();
    assert_eq!(words(&people.lines(4).await[3]), ["+", &resource, &node, &id]);
    let events = programs.events(3).await;

    let kinds: Vec<&Value> = events.iter().map(|event| &event["event"]).collect();
    assert_eq!(kinds, ["added", "removed", "added"]);
    for event in &events {
        assert_eq!((&event["device"]["id"], &event["resource"]), (&id.as_str().into(), &resource.as_str().into()));
        let at = event["at"].as_str().unwrap();
        words(at);
    }
    assert_eq!(people.end(Signal::INT).code(), Some(0));
    assert_eq!(programs.end(Signal::TERM).code(), Some(0));
}

#[tokio::test]
async fn watch_shows_changes_and_survives_a_failed_round() {
    let (fixture, sysfs) = DiscoverFixture::with_camera();
    fixture.write_rules(&[r#"KERNEL=="video0""#]);
    let (people, programs) = (fixture.watch("rules", &[]), fixture.watch("rules", &["-o", "json"]));
    people.lines(2).await;
    programs.events(1).await;

    let away = sysfs.root().with_extension("away");
    fs::rename(sysfs.root(), &away).unwrap();
    people.wait_for_log(1, "; its devices stay as they are").await;
    people.wait_for_log(1, "warning: default/rules: unavailable: ").await;
    programs.events(2).await;
    fs::rename(&away, sysfs.root()).unwrap();

    let video = sysfs.root().join(format!("{}/1-1:1.0/video4linux/video0", &Camera::in_port(1).devpath()[1..]));
    fs::write(video.join("new"), "MAJOR=81\nMINOR=7\nDEVNAME=video7\n").unwrap();
    fs::rename(video.join("new"), video.join("uevent")).unwrap();
    let line = people.lines(3).await.remove(2);
    assert_eq!((words(&line)[0], words(&line)[2]), ("~", "/dev/video7"), "{line}");
    assert!(line.contains(r#"  UDEV_DEVNODE: "/dev/video0" -> "/dev/video7"  "#), "{line}");

    let is_change = |events: &Vec<String>| events.iter().any(|event| event.contains("changed"));
    let events = wait_for("a change", || programs.lines.lock().unwrap().clone(), is_change).await;
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (last, before) = events.split_last().unwrap();
    assert_eq!(before[0]["event"], "added");
    assert!(
        before[1..].iter().all(|event| event["event"] == "failed" && event["reason"] == "Unavailable"),
        "{events:?}"
    );
    let fields: Vec<&Value> = last["changes"].as_array().unwrap().iter().map(|change| &change["field"]).collect();
    assert_eq!(fields, ["UDEV_DEVNODE", "deviceSpecs"]);
}

#[tokio::test]
async fn watch_is_silent_without_changes_and_ends_without_readers() {
    let (fixture, sysfs) = DiscoverFixture::with_camera();
    fixture.write_rules(&["KERNAL==\"video0\""]);
    let bad = fixture.run("rules", &["--watch"]);
    assert!(bad.status.code() == Some(1) && stderr(&bad).contains("did you mean 'KERNEL'?"), "{}", stderr(&bad));
    assert!(bad.stdout.is_empty());
    fixture.node.write_configuration("onvif", "onvif", "      {}\n", "");
    let without_handler = fixture.run("onvif", &["--watch"]);
    assert!(
        without_handler.status.code() == Some(1) && stderr(&without_handler).contains("'onvif'"),
        "{}",
        stderr(&without_handler)
    );

    fixture.node.write_echo("echo", 1, &["foo0", "foo1"]);
    let watch = fixture.watch("echo", &["-v"]);
    watch.wait_for_log(5, "round done").await;
    assert_eq!(watch.lines(3).await.len(), 3, "a header and two devices");
    assert_eq!(watch.end(Signal::INT).code(), Some(0));

    fixture.write_rules(&[r#"SUBSYSTEM=="video4linux""#]);
    let mut command = Command::new(akri());
    command.args(fixture.arguments("rules", &["--watch"])).env("XDG_CACHE_HOME", fixture.node.path("cache"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut header = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut header).unwrap();
    assert!(header.starts_with("RESOURCE"), "{header}");
    drop(reader);
    Camera::in_port(2).devices().iter().for_each(|device| sysfs.add(device));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn rows_appear_while_another_round_takes_long() {
    let (fixture, sysfs) = DiscoverFixture::with_camera();
    fixture.node.add_guest("  limits:\n    round: 60s\n");
    fixture.node.write_configuration("slow", "guest", "      sleep\n", "");
    fixture.write_rules(&[r#"KERNEL=="video0""#]);
    let text = |name: &str| fs::read_to_string(fixture.node.path(&format!("manifests/{name}.yaml"))).unwrap();
    fixture.node.write("manifests/both.yaml", &format!("{}\n---\n{}", text("slow"), text("rules")));
    let (once, watch) = (fixture.start("both", &[]), fixture.watch("both", &[]));
    for shown in [&once, &watch] {
        assert!(shown.lines(2).await[1].contains("/dev/video0"));
    }
    Camera::in_port(2).devices().iter().for_each(|device| sysfs.add(device));
    let video = sysfs.root().join(format!("{}/1-1:1.0/video4linux/video0", &Camera::in_port(1).devpath()[1..]));
    fs::write(video.join("uevent"), "MAJOR=81\nMINOR=7\nDEVNAME=video7\n").unwrap();
    assert_eq!(words(&watch.lines(3).await[2])[0], "~");
    assert_eq!(watch.end(Signal::INT).code(), Some(0));
    assert_eq!(once.lines(2).await.len(), 2, "the slow one is still asked");
}
