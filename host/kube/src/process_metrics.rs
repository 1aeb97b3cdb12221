//! Metrics of the process itself, from `/proc`, under the names that Prometheus' clients use, and of its requests to the API server.

use std::fmt::Write as _;
use std::fs;

use crate::api_metrics::METRICS;
use crate::metrics::MetricDoc;

/// Clock ticks per second of what `/proc` counts: a constant of Linux' interface (USER_HZ).
const TICKS: f64 = 100.0;

/// The last line of every exposition.
const END: &str = "# EOF\n";

/// The metrics of a process: name, type, suffix of samples, meaning.
const PROCESS: [(&str, &str, &str, &str); 5] = [
    ("process_cpu_seconds", "counter", "_total", "processor time of the process"),
    ("process_resident_memory_bytes", "gauge", "", "resident memory of the process"),
    ("process_virtual_memory_bytes", "gauge", "", "its address space"),
    ("process_threads", "gauge", "", "its threads"),
    ("process_open_fds", "gauge", "", "its open files"),
];

/// The metric of the build, and its meaning.
const BUILD: (&str, &str) = ("akri_build", "always 1, with the version of the program and its architecture");

/// Returns the documentation of these metrics.
pub(crate) fn docs() -> impl Iterator<Item = MetricDoc> {
    let build = MetricDoc { name: format!("{}_info", BUILD.0), labels: &["version", "architecture"], help: BUILD.1 };
    let process =
        PROCESS.iter().map(|(name, _, suffix, help)| MetricDoc { name: format!("{name}{suffix}"), labels: &[], help });
    std::iter::once(build).chain(process)
}

/// Adds the metrics of this process to an exposition. Those that can't be read are left out.
pub(crate) fn with_process_metrics(mut exposition: String) -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").ok().and_then(|files| u32::try_from(files.count()).ok());
    exposition.truncate(exposition.trim_end_matches(END).len());
    let process = process_metrics(&read("/proc/self/stat"), &read("/proc/self/status"), files);
    exposition + &build() + &process + &METRICS.set.encode()
}

fn build() -> String {
    let ((name, help), version, architecture) = (BUILD, env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let labels = format!("version=\"{version}\",architecture=\"{architecture}\"");
    format!("# HELP {name} {help}\n# TYPE {name} info\n{name}_info{{{labels}}} 1\n")
}

fn process_metrics(stat: &str, status: &str, files: Option<u32>) -> String {
    // The command, in parentheses, may have blanks in it: what follows it begins with the third field.
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    let seconds = |field: usize| Some(fields.get(field - 3)?.parse::<f64>().ok()? / TICKS);
    let line =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let bytes = |name: &str| line(name).map(|kilobytes: f64| kilobytes * 1024.0);
    let cpu = seconds(14).zip(seconds(15)).map(|(user, system)| user + system);
    let values = [cpu, bytes("VmRSS:"), bytes("VmSize:"), line("Threads:"), files.map(f64::from)];
    let mut text = String::new();
    for ((name, kind, suffix, help), value) in PROCESS.into_iter().zip(values) {
        if let Some(value) = value {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{suffix} {value}"); // a String takes everything
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_measured_by_proc() {
        let stat = "7 (an agent) x) S 1 7 7 0 -1 4194304 1 2 3 4 250 50 0 0 20 0 9 0 1 2 3";
        let status = "Name:\takri\nVmSize:\t  2048 kB\nVmRSS:\t    1024 kB\nThreads:\t9\n";
        let values = |text: &str| text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        let expected = "process_cpu_seconds_total 3\nprocess_resident_memory_bytes 1048576\n\
                        process_virtual_memory_bytes 2097152\nprocess_threads 9\nprocess_open_fds 12";
        let text = process_metrics(stat, status, Some(12));
        assert_eq!(values(&text), expected);
        assert!(text.contains("# TYPE process_cpu_seconds counter\n"), "{text}");
        assert_eq!(process_metrics("", "", None), "");
        let own = with_process_metrics("# TYPE a gauge\na 1\n# EOF\n".to_owned());
        assert!(own.starts_with("# TYPE a gauge\na 1\n# HELP akri_build "), "{own}");
        assert!(own.contains("\nakri_build_info{version=\""), "{own}");
        assert!(own.contains("process_open_fds ") && own.ends_with("\n# EOF\n"), "{own}");
    }
}
