//! The numbers of docs/contribute/benchmarks.md, as Markdown tables. `make bench` measures all of them; words after `--` choose some:
//! `cargo bench --bench numbers -- round`.

mod allocate;
mod attacks;
mod bare_plugins;
mod brokers;
mod cluster;
mod enumerate;
mod fleet;
mod hostile;
mod idle;
mod install;
mod load;
mod measure;
mod memory;
mod node;
mod onvif;
mod opcua;
mod publish;
mod reclaim;
mod register;
mod remote;
mod restart;
mod round;
mod shared;
mod start;
mod uevent;

use measure::Table;
use tokio::runtime::Runtime;

const NAMES: [&str; 21] = [
    "load",
    "start",
    "round",
    "remote",
    "hostile",
    "attacks",
    "enumerate",
    "opcua",
    "uevent",
    "register",
    "publish",
    "allocate",
    "reclaim",
    "restart",
    "onvif",
    "cluster",
    "brokers",
    "install",
    "idle",
    "memory",
    "fleet",
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let runtime = Runtime::new().unwrap();
    if let [word, count] = &*wanted
        && word == bare_plugins::WORD
    {
        return runtime.block_on(bare_plugins::serve(count.parse().unwrap()));
    }
    if let Some(unknown) = wanted.iter().find(|word| !NAMES.contains(&word.as_str())) {
        eprintln!("error: nothing to measure is called '{unknown}', only {}", NAMES.join(", "));
        std::process::exit(2);
    }
    if cfg!(debug_assertions) {
        eprintln!("warning: this is a development build; its numbers say nothing about the released program");
    }
    for name in NAMES.into_iter().filter(|name| wanted.is_empty() || wanted.iter().any(|word| word == name)) {
        println!("{}", runtime.block_on(measured(name)));
    }
}

/// Returns whether all nodes of the fleet are to share one device.
fn is_shared() -> bool {
    std::env::var("SHARED").is_ok_and(|value| !value.is_empty())
}

async fn measured(name: &str) -> Table {
    match name {
        "load" => load::measure().await,
        "start" => start::measure().await,
        "round" => round::measure().await,
        "hostile" => hostile::measure().await,
        "attacks" => attacks::measure().await,
        "remote" => remote::measure().await,
        "enumerate" => enumerate::measure().await,
        "opcua" => opcua::measure().await,
        "uevent" => uevent::measure().await,
        "register" => register::measure().await,
        "publish" => publish::measure().await,
        "allocate" => allocate::measure().await,
        "reclaim" => reclaim::measure().await,
        "onvif" => onvif::measure().await,
        "cluster" => cluster::measure().await,
        "brokers" => brokers::measure().await,
        "install" => install::measure().await,
        "idle" => idle::measure().await,
        "memory" => memory::measure().await,
        "fleet" if is_shared() => shared::measure(fleet::nodes()).await,
        "fleet" => fleet::measure().await,
        _ => restart::measure().await,
    }
}
