//! The backoff of a node that finds many shared devices while others make their Instances: of several nodes one makes most of them, and the
//! others see by lists how far it is. It decides, and sends nothing.

use std::time::{Duration, Instant};

/// Refused creations after which Instances are listed. A node with fewer devices reads each: others may have many more.
const REFUSED: usize = 16;

/// The pause between lists while another node makes Instances, as a multiple of the time that one takes, and its bounds.
const PAUSE: u32 = 8;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest wait for a device that the other node may not find.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The lists and refused creations of one Configuration.
#[derive(Debug, Default)]
pub struct CreationBackoff {
    refused: usize,
    /// The time from which on refusals count again.
    since: Option<Instant>,
    /// The number of Instances that other nodes have made.
    made: usize,
    /// The time of the next list, if another node is making them.
    next: Option<Instant>,
}

/// The next step for a device that no list has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// This node makes its Instance.
    Create,
    /// Instances are listed now.
    List,
    /// It waits until then, and asks again.
    Wait(Instant),
}

impl CreationBackoff {
    /// Returns the next step for a device that was `asked` for at that time.
    pub fn next_step(&self, asked: Instant, now: Instant) -> NextStep {
        match self.next.filter(|_| now < asked + LONGEST_WAIT) {
            None => NextStep::Create,
            Some(next) if next <= now => NextStep::List,
            Some(next) => NextStep::Wait(next),
        }
    }

    /// A creation was refused at that time. Returns whether Instances are to be listed.
    pub fn is_list_due(&mut self, refused_at: Instant) -> bool {
        let counts = self.since.is_none_or(|since| since < refused_at);
        self.refused += usize::from(counts);
        counts && self.refused >= REFUSED
    }

    /// Takes a list that began at that time: the nodes that have made each Instance. Of nodes that meet, the first by name goes on; if it
    /// meets the others again, they are ahead of it.
    pub fn listed<'a>(&mut self, node: &str, makers: impl Iterator<Item = &'a str>, began: Instant, now: Instant) {
        let others: Vec<&str> = makers.filter(|maker| *maker != node).collect();
        let gives_way = self.since.is_some() || others.iter().any(|maker| *maker < node);
        let pause = (now.saturating_duration_since(began) * PAUSE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let next = (gives_way && others.len() > self.made).then_some(now + pause);
        *self = Self { refused: 0, since: Some(began), made: others.len(), next };
    }

    /// Takes a list that is not complete: for some time it is not repeated.
    pub fn too_many(&mut self, until: Instant) {
        *self = Self { since: Some(until), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// The time that a request takes, and the number of those at once.
    const REQUEST: Duration = Duration::from_millis(50);
    const AT_ONCE: usize = 32;

    /// The devices that all find.
    const SHARED: u32 = 600;

    /// A device that is looked for since a time, with the time of the next step, which is the answer to its creation if that was `sent`.
    struct Pending {
        device: u32,
        asked: Instant,
        at: Instant,
        sent: bool,
    }

    struct Node {
        name: &'static str,
        start: Instant,
        devices: Vec<u32>,
        known: BTreeSet<u32>,
        pending: Vec<Pending>,
        backoff: CreationBackoff,
        refused: usize,
        lists: usize,
    }

    type Made = BTreeMap<u32, &'static str>;

    impl Node {
        /// A node that finds some devices beside those of all.
        fn new(name: &'static str, start: Instant, own: u32) -> Self {
            let number = u32::from(name.as_bytes()[0]);
            let mut devices: Vec<u32> = (0..SHARED).map(|device| device << 8).collect();
            devices.extend((0..own).map(|device| ((device * (SHARED / own)) << 8) + number));
            devices.sort_unstable_by_key(|device| std::cmp::Reverse(*device));
            let (known, pending, backoff) = (BTreeSet::new(), Vec::new(), CreationBackoff::default());
            Self { name, start, devices, known, pending, backoff, refused: 0, lists: 0 }
        }

        fn step(&mut self, made: &mut Made, now: Instant) {
            if now < self.start {
                return;
            }
            let (due, later) = std::mem::take(&mut self.pending).into_iter().partition(|pending| pending.at <= now);
            self.pending = later;
            for pending in due {
                self.proceed(pending, made, now);
            }
            while self.pending.len() < AT_ONCE
                && let Some(device) = self.devices.pop()
            {
                self.proceed(Pending { device, asked: now, at: now, sent: false }, made, now);
            }
        }

        fn proceed(&mut self, mut pending: Pending, made: &mut Made, now: Instant) {
            if self.known.contains(&pending.device) {
                return;
            }
            if pending.sent {
                if *made.entry(pending.device).or_insert(self.name) != self.name {
                    self.refused += 1;
                    if self.backoff.is_list_due(now) {
                        self.list(made, now);
                    }
                }
                self.known.insert(pending.device);
                return;
            }
            match self.backoff.next_step(pending.asked, now) {
                NextStep::Create => pending.sent = true,
                NextStep::List => self.list(made, now),
                NextStep::Wait(_) => {}
            }
            let next = if let NextStep::Wait(until) = self.backoff.next_step(pending.asked, now) { until } else { now };
            pending.at = if pending.sent { now + REQUEST } else { next };
            self.pending.push(pending);
        }

        fn list(&mut self, made: &Made, now: Instant) {
            self.lists += 1;
            self.known.extend(made.keys());
            self.backoff.listed(self.name, made.values().copied(), now, now + REQUEST);
        }
    }

    /// Runs nodes that start at these times, in milliseconds. Returns how long it takes until all have all, and the nodes.
    fn run(starts: &[u64], own: u32) -> (Duration, Vec<Node>) {
        let begin = Instant::now();
        let at = |milliseconds: u64| begin + Duration::from_millis(milliseconds);
        let nodes = ["a", "b", "c", "d"].into_iter().zip(starts);
        let mut nodes: Vec<Node> = nodes.map(|(name, start)| Node::new(name, at(*start), own)).collect();
        let mut made = Made::new();
        for step in 0..12_000 {
            let now = at(step * 5);
            nodes.iter_mut().for_each(|node| node.step(&mut made, now));
            nodes.rotate_left(1); // none is always first
            if nodes.iter().all(|node| node.pending.is_empty() && node.devices.is_empty()) {
                return (now - begin, nodes);
            }
        }
        panic!("they do not end");
    }

    proptest! {
        #[test] // rule 77
        fn of_nodes_that_start_at_once_one_makes_most(
            starts in prop::collection::vec(0..1000_u64, 2..=4),
            own in prop::sample::select(vec![0_u32, 50]),
        ) {
            let (took, nodes) = run(&starts, own);
            for node in nodes {
                prop_assert!(node.refused <= 64 && node.lists <= 10, "{}: {} refused, {} lists", node.name, node.refused, node.lists);
            }
            prop_assert!(took <= Duration::from_secs(5), "{took:?}");
        }
    }
}
