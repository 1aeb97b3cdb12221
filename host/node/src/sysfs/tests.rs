//! Queries on trees of files that look like sysfs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use super::*;

/// A sysfs and a udev database in a temporary directory.
struct Tree(tempfile::TempDir);

impl Tree {
    /// A USB camera on a hub on PCI, a serial adapter, a disk with a partition and a network interface.
    fn machine() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        let usb = "devices/pci0000:00/0000:00:14.0/usb1/1-1";
        tree.device("devices/pci0000:00", None, "");
        tree.device("devices/pci0000:00/0000:00:14.0", Some("bus/pci"), "DRIVER=xhci_hcd\n");
        tree.device("devices/pci0000:00/0000:00:14.0/usb1", Some("bus/usb"), "DEVTYPE=usb_device\n");
        tree.device(usb, Some("bus/usb"), "MAJOR=189\nMINOR=1\nDEVNAME=bus/usb/001/002\nDEVTYPE=usb_device\n");
        tree.device(&format!("{usb}/1-1:1.0"), Some("bus/usb"), "DRIVER=uvcvideo\nDEVTYPE=usb_interface\n");
        let video = format!("{usb}/1-1:1.0/video4linux/video0");
        tree.device(&video, Some("class/video4linux"), "MAJOR=81\nMINOR=0\nDEVNAME=video0\n");
        tree.file(&format!("{video}/name"), "Front Camera \n");
        tree.file(&format!("{usb}/idVendor"), "046d\n");
        tree.file(&format!("{usb}/1-1:1.0/bInterfaceClass"), "0e\n");
        tree.link(&format!("{video}/device"), &format!("{usb}/1-1:1.0"));
        tree.device("devices/virtual/tty/ttyS0", Some("class/tty"), "MAJOR=4\nMINOR=64\nDEVNAME=ttyS0\n");
        tree.device("devices/virtual/tty/tty-x", Some("class/tty"), "MAJOR=4\nMINOR=65\nDEVNAME=../../etc/shadow\n");
        tree.device("devices/virtual/block/cciss!c0", Some("class/block"), "MAJOR=104\nMINOR=0\nDEVNAME=cciss/c0\n");
        tree.file("devices/virtual/block/cciss!c0/queue/rotational", "1\n");
        tree.device("devices/virtual/block/cciss!c0/p1", Some("class/block"), "MAJOR=104\nMINOR=1\nDEVNAME=p1\n");
        tree.data("c81:0", "S:v4l/by-id/cam\nE:ID_SERIAL=cam-1\nE:ID_V4L_CAPABILITIES=:capture:\nG:seat\nQ:seat\n");
        tree.data("+usb:1-1:1.0", "E:ID_MODEL=Interface\n");
        tree.data("b104:0", "E:ID_TYPE=disk\n");
        tree
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs { root: self.0.path().join("sys"), udev_data: self.0.path().join("data") }
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        let path = self.0.path().join("sys").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn file(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    fn data(&self, name: &str, text: &str) {
        fs::create_dir_all(self.0.path().join("data")).unwrap();
        fs::write(self.0.path().join("data").join(name), text).unwrap();
    }

    /// A relative link, as sysfs has them.
    fn link(&self, path: &str, target: &str) {
        let up = "../".repeat(path.matches('/').count());
        symlink(Path::new(&up).join(target), self.path(path)).unwrap();
    }

    fn device(&self, path: &str, subsystem: Option<&str>, uevent: &str) {
        self.file(&format!("{path}/uevent"), uevent);
        let Some(subsystem) = subsystem else { return };
        self.link(&format!("{path}/subsystem"), subsystem);
        let name = path.rsplit('/').next().unwrap();
        let devices = if subsystem.starts_with("bus/") { "/devices" } else { "" };
        self.link(&format!("{subsystem}{devices}/{name}"), path);
    }

    fn run(&self, granted: &[&str], ask: impl FnOnce(&mut Query)) -> Snapshot {
        self.try_run(granted, ask, 1 << 20).unwrap()
    }

    fn try_run(&self, granted: &[&str], ask: impl FnOnce(&mut Query), bytes: usize) -> Result<Snapshot, Stop> {
        let mut query = Query::default();
        ask(&mut query);
        let granted: Vec<String> = granted.iter().map(|glob| (*glob).to_owned()).collect();
        let until = Instant::now() + Duration::from_secs(60);
        self.sysfs().run(&query, &granted, &Bounds { bytes, until })
    }
}

fn read(query: &mut Query, attributes: &[&str]) {
    attributes.iter().for_each(|name| query.read_attribute((*name).to_owned()));
}

fn names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.entries.iter().map(|entry| entry.sysname.as_str()).collect()
}

fn get<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

#[test]
fn device_has_properties_of_kernel_and_udev() {
    let snapshot = Tree::machine().run(&["*"], |q| {
        q.match_subsystem("video4linux".to_owned());
        read(q, &["name", "absent", "subsystem", "uevent/x"]);
    });
    let [camera] = snapshot.entries.as_slice() else { panic!("{snapshot:?}") };
    assert_eq!(camera.devpath, "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0");
    assert_eq!((camera.matched, camera.parent), (true, None));
    assert_eq!(camera.subsystem.as_deref(), Some("video4linux"));
    assert_eq!(camera.devnode.as_deref(), Some("/dev/video0"));
    assert_eq!(camera.tags, ["seat"]);
    for (name, value) in [
        ("DEVNAME", "/dev/video0"),
        ("DEVPATH", camera.devpath.as_str()),
        ("SUBSYSTEM", "video4linux"),
        ("MAJOR", "81"),
        ("ID_SERIAL", "cam-1"),
        ("DEVLINKS", "/dev/v4l/by-id/cam"),
        ("TAGS", ":seat:"),
    ] {
        assert_eq!(get(&camera.properties, name), Some(value), "{name}");
    }
    let attributes = [("name", "Front Camera"), ("subsystem", "video4linux")];
    assert_eq!(camera.attributes, attributes.map(|(k, v)| (k.to_owned(), v.to_owned())));
}

#[test]
fn matches_narrow_the_answer() {
    let tree = Tree::machine();
    type Ask = fn(&mut Query);
    let cases: &[(Ask, &[&str])] = &[
        (|q| q.match_subsystem("tty|video*".to_owned()), &["video0", "tty-x", "ttyS0"]),
        (|q| q.match_sysname("cciss/*".to_owned()), &["cciss/c0"]),
        (|q| q.match_devpath("*/usb1/*/video4linux/*".to_owned()), &["video0"]),
        (|q| q.match_property("DEVTYPE".to_owned(), "usb_[!i]*".to_owned()), &["usb1", "1-1"]),
        (|q| q.match_property("ID_TYPE".to_owned(), "disk".to_owned()), &["cciss/c0"]),
        (|q| q.match_tag("se?t".to_owned()), &["video0"]),
        (|q| q.match_subsystem("nothing".to_owned()), &[]),
    ];
    for (ask, expected) in cases {
        assert_eq!(names(&tree.run(&["*"], ask)), *expected);
    }
    let both = tree.run(&["*"], |q| {
        q.match_subsystem("usb".to_owned());
        q.match_sysname("ttyS0".to_owned());
    });
    assert!(both.entries.is_empty());
}

#[test]
fn query_without_matches_returns_all_granted_devices() {
    let tree = Tree::machine();
    assert_eq!(names(&tree.run(&["tty", "video4linux"], |_| {})), ["video0", "tty-x", "ttyS0"]);
    assert_eq!(tree.run(&["*"], |_| {}).entries.len(), 9);
    assert!(tree.run(&[], |_| {}).entries.is_empty());
}

#[test]
fn ancestors_stand_before_and_are_linked() {
    let snapshot = Tree::machine().run(&["*"], |q| {
        q.match_sysname("video0".to_owned());
        q.read_attribute("idVendor".to_owned());
        q.ancestors = true;
    });
    assert_eq!(names(&snapshot), ["pci0000:00", "0000:00:14.0", "usb1", "1-1", "1-1:1.0", "video0"]);
    let parents: Vec<_> = snapshot.entries.iter().map(|entry| entry.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2), Some(3), Some(4)]);
    assert_eq!(get(&snapshot.entries[3].attributes, "idVendor"), Some("046d"));
    assert_eq!(snapshot.entries[1].driver.as_deref(), Some("xhci_hcd"));
    assert_eq!(snapshot.entries.iter().filter(|entry| entry.matched).count(), 1);
}

#[test]
fn relatives_of_other_subsystems_are_only_named() {
    let snapshot = Tree::machine().run(&["video4linux"], |q| {
        q.read_attribute("idVendor".to_owned());
        q.ancestors = true;
    });
    let usb = snapshot.entries.iter().find(|entry| entry.sysname == "1-1").unwrap();
    assert_eq!(usb.subsystem.as_deref(), Some("usb"));
    assert_eq!((&usb.devnode, &usb.driver, usb.matched), (&None, &None, false));
    assert!(usb.properties.is_empty() && usb.attributes.is_empty() && usb.tags.is_empty());
}

#[test]
fn descendants_come_with_what_matched() {
    let tree = Tree::machine();
    let ask = |q: &mut Query| {
        q.match_sysname("1-1".to_owned());
        q.descendants = true;
    };
    let snapshot = tree.run(&["*"], ask);
    assert_eq!(names(&snapshot), ["1-1", "1-1:1.0", "video0"]);
    assert!(snapshot.entries.iter().all(|entry| entry.parent.is_none()));
    assert_eq!(snapshot.entries[2].devnode.as_deref(), Some("/dev/video0"));
    assert_eq!(tree.run(&["usb"], ask).entries[2].devnode, None);
}

#[test]
fn name_between_parent_and_child_does_not_part_them() {
    let tree = Tree(tempfile::tempdir().unwrap());
    for path in ["devices/a", "devices/a-x", "devices/a/b"] {
        tree.device(path, Some("bus/test"), "");
    }
    let snapshot = tree.run(&["*"], |query| query.ancestors = true);
    assert_eq!(names(&snapshot), ["a", "a-x", "b"]);
    assert_eq!(snapshot.entries[2].parent, Some(0));
}

#[test]
fn attributes_of_a_device_that_is_not_granted_are_not_there() {
    let tree = Tree::machine();
    let class = |granted: &[&str]| {
        let snapshot = tree.run(granted, |q| {
            q.match_sysname("video0".to_owned());
            q.read_attribute("device/bInterfaceClass".to_owned());
        });
        get(&snapshot.entries[0].attributes, "device/bInterfaceClass").map(str::to_owned)
    };
    assert_eq!(class(&["video4linux", "usb"]).as_deref(), Some("0e"));
    assert_eq!(class(&["video4linux"]), None);
    let below = tree.run(&["usb"], |q| {
        q.match_sysname("1-1".to_owned());
        read(q, &["1-1:1.0/bInterfaceClass", "1-1:1.0/video4linux/video0/name"]);
    });
    assert_eq!(below.entries[0].attributes, [("1-1:1.0/bInterfaceClass".to_owned(), "0e".to_owned())]);
}

#[test]
fn attributes_in_directories_of_the_device_are_read() {
    let snapshot = Tree::machine().run(&["block"], |q| {
        q.match_sysname("cciss/c0".to_owned());
        q.read_attribute("queue/rotational".to_owned());
    });
    assert_eq!(get(&snapshot.entries[0].attributes, "queue/rotational"), Some("1"));
    assert_eq!(snapshot.entries[0].devnode.as_deref(), Some("/dev/cciss/c0"));
}

#[test]
fn device_node_outside_of_dev_is_none() {
    let snapshot = Tree::machine().run(&["tty"], |q| q.match_sysname("tty-x".to_owned()));
    assert_eq!(snapshot.entries[0].devnode, None);
    assert_eq!(get(&snapshot.entries[0].properties, "DEVNAME"), None);
}

#[test]
fn name_with_control_characters_is_a_name_like_others() {
    let tree = Tree::machine();
    let name = "tty\u{1b}[2J\nDEVNAME=evil";
    tree.device(&format!("devices/virtual/tty/{name}"), Some("class/tty"), "");
    let snapshot = tree.run(&["tty"], |q| q.match_sysname("tty\u{1b}*".to_owned()));
    assert_eq!(names(&snapshot), [name]);
    assert_eq!(snapshot.entries[0].devnode, None, "a name is no uevent file");
}

#[test]
fn device_that_is_there_and_cannot_be_read_is_named() {
    let tree = Tree::machine();
    let uevent = tree.path("devices/virtual/tty/ttyS0/uevent");
    fs::remove_file(&uevent).unwrap();
    fs::create_dir(&uevent).unwrap(); // opens, and does not read
    let snapshot = tree.run(&["*"], |q| q.match_subsystem("tty".to_owned()));
    assert_eq!(names(&snapshot), ["tty-x"]);
    assert_eq!((snapshot.unreadable, snapshot.skipped), (vec!["/devices/virtual/tty/ttyS0".to_owned()], 0));
}

#[test]
fn iommu_group_is_what_its_link_is_called() {
    let tree = Tree::machine();
    fs::create_dir_all(tree.path("kernel/iommu_groups/7")).unwrap();
    symlink("../../../../kernel/iommu_groups/7", tree.path("devices/virtual/tty/ttyS0/iommu_group")).unwrap();
    let snapshot = tree.run(&["tty"], |q| {
        q.match_sysname("ttyS0".to_owned());
        read(q, &["iommu_group"]);
    });
    assert_eq!(snapshot.entries[0].attributes, [("iommu_group".to_owned(), "7".to_owned())]);
}

#[test]
fn links_out_of_the_tree_are_skipped_and_counted() {
    let tree = Tree::machine();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("uevent"), "DEVNAME=secret\n").unwrap();
    symlink(outside.path(), tree.path("class/tty/absolute")).unwrap();
    symlink("../../../../../../../etc", tree.path("class/tty/above")).unwrap();
    symlink("../../class/tty", tree.path("class/tty/elsewhere")).unwrap();
    symlink("../../devices/gone", tree.path("class/tty/gone")).unwrap();
    symlink("loop", tree.path("class/tty/loop")).unwrap();
    symlink(outside.path(), tree.path("devices/fake")).unwrap();
    symlink("../../devices/fake", tree.path("class/tty/fake")).unwrap();
    symlink(outside.path().join("uevent"), tree.path("devices/virtual/tty/ttyS0/leak")).unwrap();
    let snapshot = tree.run(&["*"], |q| {
        q.match_subsystem("tty".to_owned());
        read(q, &["leak", "subsystem/ttyS0/dev"]);
    });
    assert_eq!(names(&snapshot), ["tty-x", "ttyS0"]);
    assert_eq!(snapshot.skipped, 5, "one that has gone is gone");
    assert!(snapshot.entries.iter().all(|entry| entry.attributes.is_empty()));
}

#[test]
fn long_values_are_cut_and_bytes_that_are_no_text_replaced() {
    let tree = Tree::machine();
    tree.file("devices/virtual/tty/ttyS0/long", &"x".repeat(10_000));
    fs::write(tree.path("devices/virtual/tty/ttyS0/bytes"), b"a\xffb \n\t").unwrap();
    let snapshot = tree.run(&["*"], |q| {
        q.match_sysname("ttyS0".to_owned());
        read(q, &["long", "bytes"]);
    });
    assert_eq!(get(&snapshot.entries[0].attributes, "long").unwrap().len(), 4096);
    assert_eq!(get(&snapshot.entries[0].attributes, "bytes"), Some("a\u{fffd}b"));
}

#[test]
fn tree_without_a_root_is_unavailable() {
    let tree = Tree(tempfile::tempdir().unwrap());
    let Err(Stop::Unavailable(why)) = tree.try_run(&["*"], |_| {}, 1 << 20) else { panic!("it has to fail") };
    assert!(why.contains("sys"), "{why}");
}

#[test]
fn empty_directory_is_no_machine_without_devices() {
    let tree = Tree(tempfile::tempdir().unwrap());
    fs::create_dir(tree.0.path().join("sys")).unwrap();
    let error = tree.try_run(&["*"], |_| {}, 1 << 20).unwrap_err();
    assert!(matches!(error, Stop::Unavailable(_)), "{error}");
}

#[test]
fn answer_that_is_too_large_is_refused() {
    let error = Tree::machine().try_run(&["*"], |_| {}, 1024).unwrap_err();
    assert!(matches!(error, Stop::Limit(_)), "{error}");
}

#[test]
fn run_past_its_time_ends() {
    let tree = Tree::machine();
    let bounds = Bounds { bytes: 1 << 20, until: Instant::now() };
    let error = tree.sysfs().run(&Query::default(), &["*".to_owned()], &bounds).unwrap_err();
    assert!(matches!(error, Stop::Unavailable(_)), "{error}");
}

#[test]
fn block_devices_are_found_without_the_class() {
    let tree = Tree(tempfile::tempdir().unwrap());
    fs::create_dir_all(tree.path("class/tty")).unwrap();
    tree.device("devices/virtual/block/loop0", None, "MAJOR=7\nMINOR=0\nDEVNAME=loop0\n");
    tree.link("block/loop0", "devices/virtual/block/loop0");
    let snapshot = tree.run(&["block"], |_| {});
    assert_eq!(snapshot.entries[0].devnode.as_deref(), Some("/dev/loop0"));
}

#[test]
fn person_finds_a_device_by_node_path_or_name() {
    let tree = Tree::machine();
    let video = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0";
    tree.device("devices/virtual/net/ttyS0", Some("class/net"), "");
    let root = tree.sysfs().root.display().to_string();
    for (name, paths) in [
        ("/dev/video0", &[video][..]),
        ("/dev/cciss/c0", &["/devices/virtual/block/cciss!c0"]),
        (video, &[video]),
        (&format!("/sys{video}"), &[video]),
        ("/sys/class/video4linux/video0", &[video]),
        (&format!("{root}/class/video4linux/video0/device"), &[video.rsplit_once("/video4linux").unwrap().0]),
        ("video0", &[video]),
        ("cciss/c0", &["/devices/virtual/block/cciss!c0"]),
        ("ttyS0", &["/devices/virtual/net/ttyS0", "/devices/virtual/tty/ttyS0"]),
        ("video", &[]),
        ("video?", &[]),
        ("*", &[]),
        ("a|video0", &[]),
        ("", &[]),
        ("/dev/nothing", &[]),
        ("/sys/class/tty", &[]),
        ("/sys/../data", &[]),
        ("/etc/passwd", &[]),
    ] {
        let bounds = Bounds { bytes: 1 << 20, until: Instant::now() + Duration::from_secs(60) };
        let found = tree.sysfs().find(name, &bounds).unwrap();
        assert_eq!(found.iter().map(|entry| entry.devpath.as_str()).collect::<Vec<_>>(), paths, "{name}");
    }
}

#[test]
fn this_machine_has_devices() {
    let sysfs = Sysfs { root: "/sys".into(), udev_data: "/run/udev/data".into() };
    let mut query = Query::default();
    query.ancestors = true;
    let bounds = Bounds { bytes: 32 << 20, until: Instant::now() + Duration::from_secs(60) };
    let snapshot = sysfs.run(&query, &["*".to_owned()], &bounds).unwrap();
    let null = snapshot.entries.iter().find(|entry| entry.devnode.as_deref() == Some("/dev/null")).unwrap();
    assert_eq!((get(&null.properties, "MAJOR"), get(&null.properties, "MINOR")), (Some("1"), Some("3")));
    for (index, entry) in snapshot.entries.iter().enumerate() {
        assert!(entry.parent.is_none_or(|parent| (parent as usize) < index), "{entry:?}");
    }
}
