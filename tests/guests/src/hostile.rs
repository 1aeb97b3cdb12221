//! Everything a bad handler may try.

use std::time::Duration;

use crate::akri::discovery::{logging, round, udev};
use crate::{Round, device, hint};

pub(crate) fn discover(word: &str, argument: &str) -> Round {
    let count = argument.parse().unwrap_or(1_000_000);
    Some(match word {
        "loop" => spin(),
        "import-loop" => ask_for_ever(),
        "sleep" => sleep_for_ever(),
        "panic" => panic!("the guest panics on purpose"),
        "exit" => std::process::exit(3),
        "stack" => Ok(vec![device(depth(1, &[0; 64]).to_string(), Vec::new())]),
        "memory" => Ok(vec![device(hoard().to_string(), Vec::new())]),
        "log-flood" => Ok(flood_log(count)),
        "stdout-flood" => Ok(flood_stdout(count)),
        "stderr-flood" => Ok(flood_stderr(count)),
        "note-flood" => Ok(flood_notes(count)),
        "keep-flood" => Ok(flood_kept(count)),
        "resources" => Ok(hold_queries(count)),
        "wide-query" => Ok(wide_query(count)),
        "big-argument" => Ok(big_argument(count)),
        "huge-string" => Ok(vec![device("x".repeat(count), Vec::new())]),
        "long-value" => Ok(vec![device("long", vec![hint("LONG", &"x".repeat(count))])]),
        "many-properties" => Ok(vec![device("many", (0..count).map(|i| hint(&format!("P{i}"), "")).collect())]),
        "aliased-strings" => Ok(alias(count)),
        "duplicate-ids" => Ok(vec![device("same", Vec::new()), device("same", Vec::new())]),
        "empty-id" => Ok(vec![device("", Vec::new())]),
        _ => return None,
    })
}

pub(crate) fn spin() -> ! {
    let mut turns = 0_u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}

fn ask_for_ever() -> ! {
    loop {
        std::hint::black_box(round::remaining());
    }
}

fn sleep_for_ever() -> ! {
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
