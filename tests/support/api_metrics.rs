//! Counters of an API server: requests, events of watches, processor time.

use kube::Client;

/// The metrics of an API server at one time.
pub struct ApiMetrics(String);

impl ApiMetrics {
    /// Reads them.
    pub async fn read(client: &Client) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        Self(client.request_text(request).await.unwrap())
    }

    /// Returns the requests that wrote objects of `akri.sh`; each of the words is a value of some label.
    pub fn writes(&self, words: &[&str]) -> f64 {
        let verbs = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];
        self.sum("apiserver_request_total{", |line| {
            let has = |word: &str| line.contains(&format!("\"{word}\""));
            has("akri.sh") && verbs.into_iter().any(has) && words.iter().all(|word| has(word))
        })
    }

    /// Returns the requests that read objects of `akri.sh`.
    pub fn reads(&self) -> f64 {
        let verbs = ["GET", "LIST"];
        self.sum("apiserver_request_total{", |line| {
            let has = |word: &str| line.contains(&format!("\"{word}\""));
            has("akri.sh") && verbs.into_iter().any(has)
        })
    }

    /// Returns the events that watches of `akri.sh` were sent.
    pub fn events(&self) -> f64 {
        self.sum("apiserver_watch_events_total{", |line| line.contains(r#"group="akri.sh""#))
    }

    /// Returns the bytes of these events.
    pub fn bytes(&self) -> f64 {
        self.sum("apiserver_watch_events_sizes_sum", |line| line.contains(r#"group="akri.sh""#))
    }

    /// Returns the processor time of the API server, in seconds.
    pub fn processor(&self) -> f64 {
        self.sum("process_cpu_seconds_total", |_| true)
    }

    fn sum(&self, metric: &str, wanted: impl Fn(&str) -> bool) -> f64 {
        let lines = self.0.lines().filter(|line| line.starts_with(metric) && wanted(line));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}
