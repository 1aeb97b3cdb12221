//! Metrics of the process itself, from `/proc`, under the names that Prometheus' clients use, and of its requests to the API server.

use std::fmt::Write as _;
use std::fs;

use crate::api_metrics;

/// Clock ticks per second of what `/proc` counts: a constant of Linux' interface (USER_HZ).
const TICKS: f64 = 100.0;

/// The last line of every exposition.
const END: &str = "# EOF\n";

/// Adds the metrics of this process to an exposition. Those that can't be read are left out.
pub(crate) fn with_process_metrics(mut exposition: String) -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").ok().and_then(|files| u32::try_from(files.count()).ok());
    exposition.truncate(exposition.trim_end_matches(END).len());
    exposition + &process_metrics(&read("/proc/self/stat"), &read("/proc/self/status"), files) + &api_metrics::encode()
}

fn process_metrics(stat: &str, status: &str, files: Option<u32>) -> String {
    // The command, in parentheses, may have blanks in it: what follows it begins with the third field.
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    let seconds = |field: usize| Some(fields.get(field - 3)?.parse::<f64>().ok()? / TICKS);
    let line =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let bytes = |name: &str| line(name).map(|kilobytes: f64| kilobytes * 1024.0);
    let cpu = seconds(14).zip(seconds(15)).map(|(user, system)| user + system);
    let mut text = String::new();
    for (name, kind, suffix, value) in [
        ("process_cpu_seconds", "counter", "_total", cpu),
        ("process_resident_memory_bytes", "gauge", "", bytes("VmRSS:")),
        ("process_virtual_memory_bytes", "gauge", "", bytes("VmSize:")),
        ("process_threads", "gauge", "", line("Threads:")),
        ("process_open_fds", "gauge", "", files.map(f64::from)),
    ] {
        if let Some(value) = value {
            let _ = writeln!(text, "# TYPE {name} {kind}\n{name}{suffix} {value}"); // a String takes everything
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
        let expected = "# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 3\n\
                        # TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 1048576\n\
                        # TYPE process_virtual_memory_bytes gauge\nprocess_virtual_memory_bytes 2097152\n\
                        # TYPE process_threads gauge\nprocess_threads 9\n\
                        # TYPE process_open_fds gauge\nprocess_open_fds 12\n";
        assert_eq!(process_metrics(stat, status, Some(12)), expected);
        assert_eq!(process_metrics("", "", None), "");
        let own = with_process_metrics("# TYPE a gauge\na 1\n# EOF\n".to_owned());
        assert!(own.starts_with("# TYPE a gauge\na 1\n# TYPE process_cpu_seconds counter\n"), "{own}");
        assert!(own.contains("process_open_fds ") && own.ends_with("\n# EOF\n"), "{own}");
    }
}
