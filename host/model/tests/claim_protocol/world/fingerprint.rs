//! Fingerprints of worlds, by which the exploration knows what it has seen.
//!
//! Versions, UIDs, generations and times count by rank: worlds that differ only in how often something happened are one. So
//! are worlds that differ only in which node is which.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use super::World;
use super::node::Node;
use super::setup::NODES;

/// The part of a fingerprint about a node, kept for as long as nothing happens to it.
#[derive(Default)]
pub(crate) struct Cache(OnceLock<Summary>);

/// A node that changes forgets it.
impl Clone for Cache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

struct Summary {
    texts: Vec<u64>,
    numbers: Vec<u64>,
    /// The ranks of its texts when it was hashed, and the hash.
    hashed: OnceLock<(Vec<usize>, u64)>,
}

impl Node {
    fn summary(&self) -> &Summary {
        self.cache.0.get_or_init(|| {
            let mut collector = Collector::default();
            self.hash(&mut collector);
            let Collector { mut texts, mut numbers } = collector;
            rank(&mut texts);
            rank(&mut numbers);
            Summary { texts, numbers, hashed: OnceLock::new() }
        })
    }

    /// Returns the hash of a node, seen from itself.
    fn fingerprint(&self, own: usize, nodes: usize, texts: &[u64]) -> u64 {
        let summary = self.summary();
        let ranks: Vec<usize> = summary.texts.iter().map(|text| texts.binary_search(text).unwrap()).collect();
        let hash = || {
            let mut hasher = Ranker { state: 1, texts, numbers: &summary.numbers, first: own, nodes };
            self.hash(&mut hasher);
            mix(hasher.state)
        };
        let (known, hashed) = summary.hashed.get_or_init(|| (ranks.clone(), hash()));
        if *known == ranks { *hashed } else { hash() }
    }
}

fn rank(numbers: &mut Vec<u64>) {
    numbers.sort_unstable();
    numbers.dedup();
}

impl World {
    /// Returns the least fingerprint of all nodes that may be the first. Nodes see each other in a circle.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut collector = Collector::default();
        self.hash_cluster(0, &mut collector);
        self.network.iter().for_each(|message| message.body.hash(&mut collector));
        let mut texts = collector.texts;
        self.nodes.iter().for_each(|node| texts.extend_from_slice(&node.summary().texts));
        rank(&mut texts);
        let count = self.nodes.len();
        let nodes: Vec<u64> =
            self.nodes.iter().enumerate().map(|(own, node)| node.fingerprint(own, count, &texts)).collect();
        (0..count).map(|first| self.fingerprint_from(first, &texts, &nodes)).min().unwrap()
    }

    fn fingerprint_from(&self, first: usize, texts: &[u64], nodes: &[u64]) -> u64 {
        let count = nodes.len();
        let ranker = |state| Ranker { state, texts, numbers: &[], first, nodes: count };
        let mut cluster = ranker(0);
        (0..count).for_each(|place| cluster.add(nodes[(first + place) % count]));
        self.hash_cluster(first, &mut cluster);
        // Messages are on their way in no order.
        let messages = self.network.iter().map(|message| {
            let mut hasher = ranker(7);
            let place = (message.node + count - first) % count;
            (place, message.instance, message.is_late, &message.body).hash(&mut hasher);
            mix(hasher.state)
        });
        mix(messages.fold(cluster.state, u64::wrapping_add))
    }

    fn hash_cluster(&self, first: usize, hasher: &mut impl Hasher) {
        (self.faults_left, self.has_begun, self.is_collector_stalled).hash(hasher);
        let api = &self.api;
        api.capacity.hash(hasher);
        hash_text(api.version, hasher);
        hash_text(api.configuration, hasher);
        let count = self.nodes.len();
        let in_order = || (0..count).map(|place| (first + place) % count);
        for published in &api.instances {
            let Some(published) = published else {
                false.hash(hasher);
                continue;
            };
            hash_text(published.uid, hasher);
            hash_text(published.version, hasher);
            hash_text(published.configuration, hasher);
            (&published.slots, published.is_damaged).hash(hasher);
            in_order()
                .for_each(|node| (published.nodes.contains(&node), published.joining.contains(&node)).hash(hasher));
        }
        for node in in_order() {
            api.node_objects[node].hash(hasher);
            let excused = self.excused.iter().filter(|((of, ..), _)| *of == node);
            excused.for_each(|((_, instance, slot), excuse)| (instance, slot, excuse).hash(hasher));
        }
    }
}

/// Hashes a version or a UID like its text.
fn hash_text(number: u64, hasher: &mut impl Hasher) {
    let mut text = [0; 10];
    let mut rest = number;
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    hasher.write(&text);
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.machine, self.clock, self.epoch, self.generation, self.history).hash(hasher);
        (&self.disk, &self.writing, self.is_slow, self.fails_record, &self.pending).hash(hasher);
        (&self.kubelet, self.pods_left, self.settled, self.is_stalled, &self.joining).hash(hasher);
        (self.is_flaky, self.is_refreshable, self.has_cgroups, self.has_checkpoint).hash(hasher);
        if let Some(late) = &self.late_snapshot {
            (late.info.generation, late.info.epoch, late.info.at, late.info.settled).hash(hasher);
            (&late.listed, &late.without_devices, &late.checkpoint, &late.running).hash(hasher);
        }
    }
}

/// Collects the numbers that are ranked: versions and UIDs, which are texts, and all others.
#[derive(Default)]
struct Collector {
    texts: Vec<u64>,
    numbers: Vec<u64>,
}

impl Hasher for Collector {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.texts.extend(ranked_text(bytes));
    }

    fn write_u64(&mut self, number: u64) {
        self.numbers.push(number);
    }

    fn write_u8(&mut self, _: u8) {}
    fn write_u32(&mut self, _: u32) {}
    fn write_usize(&mut self, _: usize) {}
    fn write_i64(&mut self, _: i64) {}
    fn write_isize(&mut self, _: isize) {}
}

/// Hashes with ranks instead of numbers, and places instead of names of nodes.
struct Ranker<'a> {
    state: u64,
    texts: &'a [u64],
    numbers: &'a [u64],
    /// The node whose place is the first.
    first: usize,
    nodes: usize,
}

impl Ranker<'_> {
    fn add(&mut self, word: u64) {
        self.state = (self.state.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for Ranker<'_> {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(number) = ranked_text(bytes) {
            let rank = self.texts.binary_search(&number).unwrap();
            return self.add(0x1000 + rank as u64);
        }
        if let Some(node) = NODES.iter().position(|name| name.as_bytes() == bytes) {
            return self.add(0x2000 + ((node + self.nodes - self.first) % self.nodes) as u64);
        }
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let rank = self.numbers.binary_search(&number).unwrap_or(number as usize);
        self.add(rank as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn write_i64(&mut self, number: i64) {
        self.add(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.add(number as u64);
    }
}

/// Returns the number in a text that is a version or a UID.
fn ranked_text(bytes: &[u8]) -> Option<u64> {
    if bytes.len() != 10 || !matches!(bytes[0], b'5' | b'6') {
        return None;
    }
    let digit = |number: u64, byte: &u8| byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0'));
    bytes.iter().try_fold(0, digit)
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 29)
}
