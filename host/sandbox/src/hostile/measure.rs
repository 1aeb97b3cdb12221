use std::time::Instant;
use super::*;

fn fixture(total: usize, matched: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = dir.path().join("sys");
    for i in 0..total {
        let sub = if i < matched { "cam" } else { "other" };
        let dev = format!("devices/pci0000:00/0000:00:14.0/usb1/1-{}/{sub}/{sub}{i}", i % 16);
        let d = root.join(&dev);
        std::fs::create_dir_all(&d).unwrap();
        std::fs::write(d.join("uevent"), format!("MAJOR=81\nMINOR={i}\nDEVNAME={sub}{i}\n")).unwrap();
        for a in ["name", "index", "dev"] { std::fs::write(d.join(a), "value\n").unwrap(); }
        let class = root.join("class").join(sub);
        std::fs::create_dir_all(&class).unwrap();
        std::os::unix::fs::symlink(format!("../../{dev}"), class.join(format!("{sub}{i}"))).unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join(format!("c81:{i}")), "E:ID_SERIAL=x\nE:ID_MODEL=y\nG:seat\n").unwrap();
    }
    dir
}

#[tokio::test]
#[ignore]
async fn measure() {
    let t = Instant::now();
    let guest_ = host(None).load(bytes()).await.unwrap();
    println!("load, no cache: {:?}", t.elapsed());
    let dir = tempfile::tempdir().unwrap();
    let c = dir.path().join("c");
    let t = Instant::now();
    host(Some(c.clone())).load(bytes()).await.unwrap();
    println!("load, cold cache: {:?}", t.elapsed());
    for _ in 0..3 {
        let h = host(Some(c.clone()));
        let t = Instant::now();
        h.load(bytes()).await.unwrap();
        println!("load, warm cache: {:?}", t.elapsed());
    }
    for d in ["devices:0", "devices:1", "devices:100", "devices:1000", "devices:10000"] {
        let limits = Limits { devices: 10_000, ..Limits::default() };
        let mut times = Vec::new();
        for _ in 0..50 {
            let t = Instant::now();
            guest_.discover(Call { limits: limits.clone(), ..call(d) }).await.unwrap();
            times.push(t.elapsed());
        }
        times.sort();
        println!("{d}: p50 {:?} min {:?}", times[25], times[0]);
    }
    for what in ["mem", "*"] {
        let mut times = Vec::new();
        let mut n = 0;
        for _ in 0..50 {
            let t = Instant::now();
            n = guest_.discover(granted(&format!("udev:{what}"), "*")).await.unwrap().devices.len();
            times.push(t.elapsed());
        }
        times.sort();
        println!("round udev:{what} {n}: p50 {:?}", times[25]);
    }
    let fx = fixture(4000, 1000);
    for (name, s, sub, attrs) in [
        ("/sys all", crate::sysfs::Sysfs { root: "/sys".into(), udev_data: "/run/udev/data".into() }, "*", ["dev", "uevent", "size"]),
        ("tmpfs 1000 of 4000 by subsystem", crate::sysfs::Sysfs { root: fx.path().join("sys"), udev_data: fx.path().join("data") }, "cam", ["name", "index", "dev"]),
        ("tmpfs 1000 of 4000 by name", crate::sysfs::Sysfs { root: fx.path().join("sys"), udev_data: fx.path().join("data") }, "*", ["name", "index", "dev"]),
        ("tmpfs no db", crate::sysfs::Sysfs { root: fx.path().join("sys"), udev_data: "/nonexistent".into() }, "cam", ["name", "index", "dev"]),
    ] {
        let mut q = crate::sysfs::Query::default();
        q.match_subsystem(sub.to_owned());
        if name.contains("by name") { q.match_sysname("cam*".to_owned()); }
        attrs.map(|a| q.read_attribute(a.to_owned()));
        let mut times = Vec::new();
        let mut n = 0;
        for _ in 0..30 {
            let b = crate::sysfs::Bounds { bytes: 64 << 20, until: Instant::now() + Duration::from_secs(60) };
            let t = Instant::now();
            n = s.run(&q, &["*".to_owned()], &b).unwrap().entries.len();
            times.push(t.elapsed());
        }
        times.sort();
        println!("sysfs {name}: {n} p50 {:?} min {:?}", times[15], times[0]);
    }
}
