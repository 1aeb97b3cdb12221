//! Pauses after actions on objects, so that two writers that undo each other's work do so rarely.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Keys that rest for a time after an action, with the ends of these times.
#[derive(Debug)]
pub(crate) struct Rests<K>(Mutex<BTreeMap<K, Instant>>);

impl<K> Default for Rests<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> Rests<K> {
    /// Lets keys rest from now on.
    pub(crate) fn begin(&self, keys: impl IntoIterator<Item = K>, pause: Duration, now: Instant) {
        let mut ends = self.0.lock();
        ends.retain(|_, until| *until > now);
        ends.extend(keys.into_iter().map(|key| (key, now + pause)));
    }

    /// Returns the time until the end of a rest; `None` if the key does not rest.
    pub(crate) fn left(&self, key: &K, now: Instant) -> Option<Duration> {
        let left = self.0.lock().get(key)?.checked_duration_since(now)?;
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_rests_for_the_pause() {
        let (rests, now, pause) = (Rests::default(), Instant::now(), Duration::from_secs(60));
        let after = |seconds| now + Duration::from_secs(seconds);
        rests.begin(["a"], pause, now);
        assert_eq!((rests.left(&"a", after(50)), rests.left(&"b", after(50))), (Some(Duration::from_secs(10)), None));
        assert_eq!(rests.left(&"a", after(60)), None);
        rests.begin(["b"], pause, after(61));
        assert_eq!(rests.0.lock().len(), 1, "ended rests are forgotten");
    }
}
