//! The lists that one ListAndWatch stream sends, and their schedule.

use std::sync::Arc;
use std::time::Duration;

use akri_grpc::deviceplugin::ListAndWatchResponse;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::allocatable::{Kept, KeptDevices};
use crate::convert;
use crate::resource::AdvertisedDevices;

/// The way a plugin ends its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The resource was removed: the kubelet gets an empty list and forgets the devices at once.
    Empty,
    /// The agent or this registration ends and the devices still exist: the kubelet keeps its list.
    Silent,
}

/// The lifecycle state of a plugin, observed by its streams.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Phase {
    /// The time of the registration with the kubelet.
    pub(super) registered: Option<Instant>,
    pub(super) end: Option<StreamEnd>,
}

/// The ListAndWatch streams of one plugin.
#[derive(Debug)]
pub(super) struct Streams {
    resource: String,
    kept: Arc<KeptDevices>,
    /// The open streams hold its receivers.
    pub(super) phase: watch::Sender<Phase>,
    /// Notified when a stream is opened.
    pub(super) opened: Notify,
}

impl Streams {
    pub(super) fn new(resource: &str, kept: Arc<KeptDevices>) -> Self {
        Self { resource: resource.to_owned(), kept, phase: watch::Sender::default(), opened: Notify::new() }
    }

    pub(super) fn open(&self, advertised: watch::Receiver<AdvertisedDevices>) -> Lists {
        self.opened.notify_one();
        let (resource, kept, phase) = (self.resource.clone(), Arc::clone(&self.kept), self.phase.subscribe());
        Lists { advertised, phase, resource, kept, sent: None, ended: false }
    }
}

/// The lists of one stream.
pub(super) struct Lists {
    advertised: watch::Receiver<AdvertisedDevices>,
    phase: watch::Receiver<Phase>,
    resource: String,
    kept: Arc<KeptDevices>,
    sent: Option<Sent>,
    /// Set once the empty list was sent that ends the stream.
    ended: bool,
}

/// The list that was sent last.
struct Sent {
    list: AdvertisedDevices,
    at: Instant,
}

impl Lists {
    /// Waits for the next list: the first at once, then one for each change, and the repetitions of rule 3. `None` ends
    /// the stream.
    pub(super) async fn next(&mut self) -> Option<ListAndWatchResponse> {
        loop {
            let Some(sent) = &self.sent else { return Some(self.current()) };
            let phase = *self.phase.borrow_and_update();
            match phase.end {
                Some(StreamEnd::Empty) if !std::mem::replace(&mut self.ended, true) => {
                    return Some(ListAndWatchResponse::default());
                }
                Some(_) => return None,
                None => {}
            }
            tokio::select! {
                changed = self.advertised.changed() => match changed {
                    Ok(()) if sent.list == *self.advertised.borrow_and_update() => {}
                    Ok(()) => return Some(self.current()),
                    Err(_) => return None, // the resource was dropped: the kubelet keeps its devices
                },
                // Without a sender the server has ended, and this stream ends with it.
                changed = self.phase.changed() => changed.ok()?,
                kept = lost(phase.registered, &self.resource, &self.kept, sent) => match kept {
                    // Without a stream the server registers again.
                    Kept::None => return None,
                    Kept::All | Kept::Unknown => return Some(self.current()),
                },
            }
        }
    }

    fn current(&mut self) -> ListAndWatchResponse {
        let list = self.advertised.borrow_and_update().clone();
        let message = convert::list(&list);
        self.sent = Some(Sent { list, at: Instant::now() });
        message
    }
}

/// Waits until an unchanged list must be sent again. Kubelets before late 2025 mark a new registration unhealthy if
/// they notice the end of the old connection after it, and the devices would stay unhealthy (rule 3). Each list makes the
/// kubelet write its checkpoint to disk, so one that has kept the devices gets none (rule 49). Returns what it has.
async fn lost(registered: Option<Instant>, resource: &str, kept: &KeptDevices, sent: &Sent) -> Kept {
    let Some(since) = registered else { return std::future::pending().await };
    loop {
        sleep_until(next_check(kept.started, since, Instant::now())).await;
        // Boxed, since each resource has a stream that waits, and few ask at once.
        match Box::pin(kept.of(resource, &sent.list, sent.at)).await {
            Kept::All => {}
            lost => return lost,
        }
    }
}

/// Returns the next time of 1 s and 10 s after the registration, then every 60 s of all resources at once: a node with many would be
/// woken up for each.
fn next_check(started: Instant, since: Instant, now: Instant) -> Instant {
    let minutes = now.duration_since(started).as_secs() / 60;
    match now.duration_since(since).as_secs() {
        0 => since + Duration::from_secs(1),
        1..10 => since + Duration::from_secs(10),
        _ => started + Duration::from_secs((minutes + 1) * 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::VirtualDevice;

    struct Source {
        advertised: watch::Sender<AdvertisedDevices>,
        phase: watch::Sender<Phase>,
        lists: Lists,
    }

    fn source() -> Source {
        let advertised = watch::Sender::new(AdvertisedDevices::default());
        let phase = watch::Sender::new(Phase::default());
        let lists = lists(&advertised, &phase);
        Source { advertised, phase, lists }
    }

    /// Returns the lists for a kubelet that does not report its lists.
    fn lists(advertised: &watch::Sender<AdvertisedDevices>, phase: &watch::Sender<Phase>) -> Lists {
        let kept = Arc::new(KeptDevices::new("/nonexistent".into()));
        let (advertised, phase) = (advertised.subscribe(), phase.subscribe());
        Lists { advertised, phase, resource: "akri.sh/cam".to_owned(), kept, sent: None, ended: false }
    }

    fn set(healthy: &[bool]) -> Vec<VirtualDevice> {
        healthy.iter().enumerate().map(|(i, &healthy)| VirtualDevice { id: i.to_string(), healthy }).collect()
    }

    impl Source {
        /// Returns the list that is available without waiting.
        async fn now(&mut self) -> Option<Vec<bool>> {
            let list = tokio::time::timeout(Duration::ZERO, self.lists.next()).await.ok()??;
            Some(list.devices.iter().map(|device| device.health == "Healthy").collect())
        }
    }

    #[tokio::test] // rule 4
    async fn list_is_sent_at_once_and_then_on_change() {
        let mut source = source();
        assert_eq!(source.now().await, Some(vec![]));
        assert_eq!(source.now().await, None);
        source.advertised.send_modify(|a| a.devices = set(&[true, false]));
        assert_eq!(source.now().await, Some(vec![true, false]));
        source.advertised.send_modify(|a| a.devices = set(&[true, false]));
        assert_eq!(source.now().await, None, "an equal list");
        source.advertised.send_modify(|a| a.resend += 1);
        assert_eq!(source.now().await, Some(vec![true, false]), "an equal list that is to be sent again");
        assert_eq!(source.now().await, None);
    }

    #[tokio::test]
    async fn dropped_resource_keeps_its_devices() {
        let mut source = source();
        source.now().await;
        drop(source.advertised);
        assert_eq!(source.lists.next().await, None);
    }

    #[tokio::test]
    async fn plugin_ends_with_an_empty_list_or_silently() {
        let mut source = source();
        source.advertised.send_modify(|a| a.devices = set(&[true]));
        let mut other = lists(&source.advertised, &source.phase);
        other.next().await;
        source.now().await;
        source.phase.send_modify(|phase| phase.end = Some(StreamEnd::Empty));
        assert_eq!(source.lists.next().await, Some(ListAndWatchResponse::default()));
        assert_eq!(source.lists.next().await, None);
        source.phase.send_modify(|phase| phase.end = Some(StreamEnd::Silent));
        assert_eq!(other.next().await, None);
    }

    #[tokio::test] // rule 3, rule 49
    async fn list_is_repeated_after_1_s_and_10_s() {
        let mut source = source();
        source.now().await;
        for seconds in [1, 10] {
            assert_eq!(source.now().await, None);
            // Pretends that the plugin was registered long enough ago for the repetition to be due in a moment.
            let almost = Duration::from_secs(seconds) - Duration::from_millis(20);
            let since = Instant::now().checked_sub(almost).expect("the machine is up for some minutes");
            source.phase.send_modify(|phase| phase.registered = Some(since));
            assert_eq!(source.lists.next().await, Some(ListAndWatchResponse::default()));
            assert!(since.elapsed().as_secs() >= seconds);
        }
    }

    #[test] // rule 3
    fn repetition_schedule_has_no_gaps() {
        let started = Instant::now();
        let at = |millis| started + Duration::from_millis(millis);
        let cases = [
            (0, 0, 1_000),
            (0, 999, 1_000),
            (0, 1_000, 10_000),
            (0, 9_999, 10_000),
            (0, 10_000, 60_000),
            (0, 60_000, 120_000),
            (0, 60_001, 120_000),
            (45_500, 46_000, 46_500),
            (45_500, 46_500, 55_500),
            (45_500, 55_500, 60_000),
            (59_000, 60_500, 69_000),
            (59_000, 69_000, 120_000),
        ];
        for (since, now, next) in cases {
            let due = next_check(started, at(since), at(now));
            assert_eq!((due - started).as_millis(), next, "registered at {since} ms, at {now} ms");
        }
    }
}
