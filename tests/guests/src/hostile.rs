//! Everything a bad handler may try.

use std::time::Duration;

use crate::akri::discovery::types::{DeviceSpec, Mount};
use crate::akri::discovery::{logging, round, udev};
use crate::behaviour::Hostile;
use crate::{Round, device, hint, number};

pub(crate) fn discover(behaviour: Hostile, argument: &str) -> Round {
    let count = number(argument, 1_000_000);
    match behaviour {
        Hostile::Loop => spin(),
        Hostile::ImportLoop => ask_for_ever(),
        Hostile::Sleep => sleep_for_ever(),
        Hostile::Panic => panic!("the guest panics on purpose"),
        Hostile::Exit => std::process::exit(3),
        Hostile::Stack => Ok(vec![device(depth(1, &[0; 64]).to_string(), Vec::new())]),
        Hostile::Memory => Ok(vec![device(hoard().to_string(), Vec::new())]),
        Hostile::LogFlood => Ok(flood_log(count)),
        Hostile::StdoutFlood => Ok(flood_stdout(count)),
        Hostile::StderrFlood => Ok(flood_stderr(count)),
        Hostile::NoteFlood => Ok(flood_notes(count)),
        Hostile::KeepFlood => Ok(flood_kept(count)),
        Hostile::Resources => Ok(hold_queries(count)),
        Hostile::WideQuery => Ok(wide_query(count)),
        Hostile::BigArgument => Ok(big_argument(count)),
        Hostile::HugeString => Ok(vec![device("x".repeat(count), Vec::new())]),
        Hostile::LongValue => Ok(vec![device("long", vec![hint("LONG", &"x".repeat(count))])]),
        Hostile::ManyProperties => Ok(vec![device("many", (0..count).map(|i| hint(&format!("P{i}"), "")).collect())]),
        Hostile::AliasedStrings => Ok(alias(count)),
        Hostile::DuplicateIds => Ok(vec![device("same", Vec::new()), device("same", Vec::new())]),
        Hostile::EmptyId => Ok(vec![device("", Vec::new())]),
        Hostile::EscapingPaths => Ok(vec![escaping()]),
    }
}

pub(crate) fn spin() -> ! {
    let mut rounds = 0_u64;
    loop {
        rounds = std::hint::black_box(rounds.wrapping_add(1));
    }
}

fn ask_for_ever() -> ! {
    loop {
        std::hint::black_box(round::remaining());
    }
}

fn sleep_for_ever() -> ! {
    logging::log(logging::Level::Info, "guest", "sleeps");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[allow(unconditional_recursion)]
fn depth(level: u64, above: &[u64]) -> u64 {
    let here = std::hint::black_box([level; 64]);
    depth(level + 1, &here) + above.iter().sum::<u64>()
}

fn hoard() -> usize {
    let mut kept = Vec::new();
    loop {
        kept.push(std::hint::black_box(vec![1_u8; 1 << 20]));
    }
}

fn flood_log(count: usize) -> Vec<crate::Device> {
    for i in 0..count {
        logging::log(logging::Level::Info, "flood", &format!("line {i}"));
    }
    vec![device("flooded", Vec::new())]
}

fn flood_stdout(count: usize) -> Vec<crate::Device> {
    for i in 0..count {
        println!("line {i}");
    }
    vec![device("flooded", Vec::new())]
}

fn flood_stderr(count: usize) -> Vec<crate::Device> {
    // Without a line end, so that nothing but the host's bound stops the line from growing.
    for _ in 0..count {
        eprint!("0123456789abcdef");
    }
    vec![device("flooded", Vec::new())]
}

fn flood_notes(count: usize) -> Vec<crate::Device> {
    for i in 0..count {
        round::note("origin", "Flood", &format!("note {i}"));
    }
    vec![device("flooded", Vec::new())]
}

fn flood_kept(count: usize) -> Vec<crate::Device> {
    for i in 0..count {
        round::keep(&format!("origin-{i}"));
    }
    vec![device("flooded", Vec::new())]
}

fn hold_queries(count: usize) -> Vec<crate::Device> {
    let held: Vec<_> = (0..count).map(|_| udev::Query::new()).collect();
    vec![device(held.len().to_string(), Vec::new())]
}

fn wide_query(count: usize) -> Vec<crate::Device> {
    let query = udev::Query::new();
    for i in 0..count {
        query.match_sysname(&format!("name-{i}"));
    }
    vec![device("wide", vec![hint("RUN", &format!("{:?}", query.run().map(|_| ())))])]
}

fn big_argument(bytes: usize) -> Vec<crate::Device> {
    logging::log(logging::Level::Info, "big", &"x".repeat(bytes));
    vec![device("logged", Vec::new())]
}

/// Devices whose ids are all one and the same string in memory: small here, huge once copied one by one.
fn alias(bytes: usize) -> Vec<crate::Device> {
    let text = "x".repeat(bytes).into_boxed_str();
    let (pointer, length) = (Box::leak(text).as_mut_ptr(), bytes);
    // The strings are never freed: the host refuses the list before it would give it back to be dropped.
    let same = || unsafe { String::from_raw_parts(pointer, length, length) };
    (0..1024).map(|_| device(same(), Vec::new())).collect()
}

/// Names what it was not granted, and hopes that nobody looks.
fn escaping() -> crate::Device {
    let spec = |host_path: &str| DeviceSpec {
        container_path: "/dev/x".to_owned(),
        host_path: host_path.to_owned(),
        permissions: "rw".to_owned(),
    };
    let mount =
        |host_path: &str| Mount { container_path: "/x".to_owned(), host_path: host_path.to_owned(), read_only: false };
    let mut device = device("escape", Vec::new());
    device.device_specs = vec![spec("/dev/../etc/passwd"), spec("/dev/null/../../proc/1/mem")];
    device.mounts = vec![mount("/"), mount("/var/run/docker.sock")];
    device
}
