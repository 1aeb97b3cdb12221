//! Makes the kubelet write its checkpoint: it does so whenever a device plugin sends a list, whichever (rule 104).

use std::collections::VecDeque;
use std::time::Duration;

use akri_kubelet::resource::AdvertisedDevices;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

/// Pause between requests: each costs the kubelet an fsync.
const PAUSE: Duration = Duration::from_secs(10);

/// The lists of all device plugins of this agent.
#[derive(Debug, Default)]
pub struct CheckpointRefresher(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    advertised: VecDeque<watch::Sender<AdvertisedDevices>>,
    refreshed: Option<Instant>,
}

impl CheckpointRefresher {
    /// Adds the list of a device plugin, which is used for as long as the plugin is open.
    pub fn add(&self, list: &watch::Sender<AdvertisedDevices>) {
        self.lists().advertised.push_back(list.clone());
    }

    /// Returns whether a device plugin is open.
    pub fn can_refresh(&self) -> bool {
        !self.lists().advertised.is_empty()
    }

    /// Sends the kubelet a list again, but not too often, and each time another one: of a resource that is not registered it gets
    /// none.
    pub fn refresh(&self) {
        let now = Instant::now();
        let mut lists = self.lists();
        let is_due = lists.refreshed.is_none_or(|last| now - last >= PAUSE);
        if is_due && let Some(list) = lists.advertised.pop_front() {
            list.send_modify(|list| list.resend += 1);
            lists.advertised.push_back(list);
            lists.refreshed = Some(now);
        }
    }

    /// Returns the lists without those that no plugin sends any more.
    fn lists(&self) -> MutexGuard<'_, Lists> {
        let mut lists = self.0.lock();
        lists.advertised.retain(|list| list.receiver_count() > 0);
        lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 104
    fn any_open_plugin_refreshes_at_most_every_10_s() {
        let refresher = CheckpointRefresher::default();
        assert!(!refresher.can_refresh());
        let lists: Vec<_> = (0..2).map(|_| watch::channel(AdvertisedDevices::default())).collect();
        lists.iter().for_each(|(list, _)| refresher.add(list));
        refresher.refresh();
        refresher.refresh();
        let sent = |lists: &[(watch::Sender<AdvertisedDevices>, watch::Receiver<AdvertisedDevices>)]| {
            lists.iter().map(|(list, _)| list.borrow().resend).sum::<u64>()
        };
        assert_eq!(sent(&lists), 1);
        refresher.0.lock().refreshed = Instant::now().checked_sub(PAUSE);
        let (first, plugin) = lists.into_iter().next().unwrap();
        drop(plugin);
        refresher.refresh();
        assert_eq!(first.borrow().resend, 1, "its plugin is closed, and so is the other");
        assert!(!refresher.can_refresh());
    }

    #[test] // rule 104
    fn refreshes_rotate_since_a_list_may_reach_no_kubelet() {
        let refresher = CheckpointRefresher::default();
        let lists: Vec<_> = (0..3).map(|_| watch::channel(AdvertisedDevices::default())).collect();
        lists.iter().for_each(|(list, _)| refresher.add(list));
        for sent in 1..=2 {
            for (list, _) in &lists {
                refresher.0.lock().refreshed = Instant::now().checked_sub(PAUSE);
                refresher.refresh();
                assert_eq!(list.borrow().resend, sent);
            }
        }
    }
}
