//! Multicast datagrams that start a round, such as a camera's Hello.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use akri_sandbox::{Component, MulticastListener};
use tokio::time::{Instant, sleep_until};

use crate::round::GroupSubscription;

/// Pause between rounds that datagrams start. Anybody on the network can send them.
const SHORTEST: Duration = Duration::from_secs(1);

/// Longest pause while datagrams keep coming: each round that they start doubles it.
const LONGEST: Duration = Duration::from_secs(30);

/// The listeners of one Configuration. They stay from round to round, so that nothing that is sent meanwhile is missed.
pub(crate) struct MulticastTriggers {
    listeners: BTreeMap<SocketAddr, (GroupSubscription, MulticastListener)>,
    backoff: TriggerBackoff,
}

impl MulticastTriggers {
    pub(crate) fn new(now: Instant) -> Self {
        Self { listeners: BTreeMap::new(), backoff: TriggerBackoff { earliest: now, pause: SHORTEST } }
    }

    /// Listens to these groups and to no others, where the component runs.
    pub(crate) fn subscribe(&mut self, component: &Component, groups: &BTreeMap<SocketAddr, GroupSubscription>) {
        self.listeners
            .retain(|group, (wanted, listener)| groups.get(group) == Some(wanted) && component.owns_listener(listener));
        for (group, wanted) in groups {
            self.listeners.entry(*group).or_insert_with(|| {
                let listener = component.listen(*group, &wanted.interfaces, wanted.filters.clone());
                (wanted.clone(), listener)
            });
        }
    }

    /// Stops listening.
    pub(crate) fn close(&mut self) {
        self.listeners.clear();
    }

    /// Waits until a datagram starts a round: at once for the first, for further ones when the pause is over.
    pub(crate) async fn triggered(&mut self) {
        if self.listeners.is_empty() {
            return std::future::pending().await;
        }
        let listeners = self.listeners.values_mut().map(|(_, listener)| Box::pin(listener.received()));
        futures::future::select_all(listeners).await;
        sleep_until(self.backoff.earliest).await;
        self.backoff.start(Instant::now());
    }
}

/// Limits how often datagrams start rounds. A handler whose questions make others talk would ask without end.
#[derive(Debug)]
struct TriggerBackoff {
    earliest: Instant,
    pause: Duration,
}

impl TriggerBackoff {
    /// A round starts for a datagram.
    fn start(&mut self, now: Instant) {
        let is_quiet = now.saturating_duration_since(self.earliest) > self.pause;
        self.pause = if is_quiet { SHORTEST } else { (self.pause * 2).min(LONGEST) };
        self.earliest = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // threat 23
    fn continuous_datagrams_trigger_rounds_with_backoff() {
        let start = Instant::now();
        let mut backoff = TriggerBackoff { earliest: start, pause: SHORTEST };
        let mut rounds = 0;
        let mut now = start;
        while now < start + Duration::from_secs(300) {
            backoff.start(now);
            (rounds, now) = (rounds + 1, backoff.earliest);
        }
        assert!(rounds < 20, "{rounds}");
        backoff.start(now + Duration::from_secs(61));
        assert_eq!(backoff.pause, SHORTEST, "after a while of silence the next camera is seen at once");
    }
}
