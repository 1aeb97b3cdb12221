//! Fingerprints of worlds, by which the exploration knows what it has seen.
//!
//! Versions, UIDs, generations and times count by rank: worlds that differ only in how often something happened are one. So
//! are worlds that differ only in which node is which.

use std::hash::{Hash, Hasher};

use super::World;
use super::api::{UIDS, VERSIONS};
use super::node::Node;
use super::setup::NODES;

const PERMUTATIONS: [&[[usize; 3]]; 4] =
    [&[], &[[0, 1, 2]], &[[0, 1, 2], [1, 0, 2]], &[[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]];

impl World {
    /// Returns the least fingerprint of all orders of the nodes.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut texts = Collector { is_text: true, numbers: Vec::new() };
        self.hash_cluster(&[0, 1, 2], &mut texts);
        self.nodes.iter().for_each(|node| node.hash(&mut texts));
        let texts = texts.ranks();
        let numbers: Vec<Vec<u64>> = self
            .nodes
            .iter()
            .map(|node| {
                let mut numbers = Collector { is_text: false, numbers: Vec::new() };
                node.hash(&mut numbers);
                numbers.ranks()
            })
            .collect();
        let orders = PERMUTATIONS[self.nodes.len()].iter();
        orders.map(|order| self.fingerprint_in(order, &texts, &numbers)).min().unwrap()
    }

    /// `order` has the place of each node.
    fn fingerprint_in(&self, order: &[usize; 3], texts: &[u64], numbers: &[Vec<u64>]) -> u64 {
        let mut hasher = Ranker { state: 0, texts, numbers: &[], order };
        self.hash_cluster(order, &mut hasher);
        let mut cluster = hasher.state;
        for (number, node) in self.nodes.iter().enumerate() {
            let mut hasher = Ranker { state: order[number] as u64, texts, numbers: &numbers[number], order };
            node.hash(&mut hasher);
            cluster = cluster.wrapping_add(mix(hasher.state));
        }
        for message in &self.network {
            let mut hasher = Ranker { state: 7, texts, numbers: &[], order };
            (order[message.node], message.instance, message.is_late, &message.body).hash(&mut hasher);
            cluster = cluster.wrapping_add(mix(hasher.state));
        }
        mix(cluster)
    }

    fn hash_cluster(&self, order: &[usize; 3], hasher: &mut impl Hasher) {
        (self.faults_left, self.has_begun, self.violation.is_some()).hash(hasher);
        let api = &self.api;
        api.capacity.hash(hasher);
        hash_text(api.version, hasher);
        hash_text(api.configuration, hasher);
        for published in &api.instances {
            let Some(published) = published else {
                false.hash(hasher);
                continue;
            };
            hash_text(published.uid, hasher);
            hash_text(published.version, hasher);
            hash_text(published.configuration, hasher);
            (&published.slots, published.is_damaged).hash(hasher);
            (0..self.nodes.len())
                .map(|place| self.at(order, place))
                .for_each(|node| published.nodes.contains(&node).hash(hasher));
        }
        for place in 0..self.nodes.len() {
            let node = self.at(order, place);
            api.node_objects[node].hash(hasher);
            let excused = self.excused.iter().filter(|(of, ..)| *of == node);
            excused.for_each(|(_, instance, slot)| (instance, slot).hash(hasher));
        }
        if hasher_is_collector(hasher) {
            self.network.iter().for_each(|message| message.body.hash(hasher));
        }
    }

    fn at(&self, order: &[usize; 3], place: usize) -> usize {
        (0..self.nodes.len()).find(|node| order[*node] == place).unwrap()
    }
}

/// Messages are added in any order when they are ranked, and with all others when ranks are collected.
fn hasher_is_collector(hasher: &impl Hasher) -> bool {
    hasher.finish() == COLLECTOR
}

const COLLECTOR: u64 = u64::MAX;

fn hash_text(number: u64, hasher: &mut impl Hasher) {
    hasher.write(number.to_string().as_bytes());
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.machine, self.clock, self.epoch, self.generation, self.history).hash(hasher);
        (&self.disk, &self.writing, self.is_slow, self.fails_record, &self.pending).hash(hasher);
        (&self.kubelet, self.pods_left, self.settled, self.is_stalled).hash(hasher);
        (self.is_flaky, self.is_refreshable, self.has_cgroups, self.has_checkpoint).hash(hasher);
        if let Some(late) = &self.late_snapshot {
            (late.info.generation, late.info.epoch, late.info.at, late.info.settled).hash(hasher);
            (&late.listed, &late.containers, &late.checkpoint, &late.running).hash(hasher);
        }
    }
}

/// Collects the numbers that are ranked: those in texts, or all others.
struct Collector {
    is_text: bool,
    numbers: Vec<u64>,
}

impl Collector {
    fn ranks(mut self) -> Vec<u64> {
        self.numbers.sort_unstable();
        self.numbers.dedup();
        self.numbers
    }
}

impl Hasher for Collector {
    fn finish(&self) -> u64 {
        COLLECTOR
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.is_text {
            self.numbers.extend(ranked_text(bytes));
        }
    }

    fn write_u64(&mut self, number: u64) {
        if !self.is_text {
            self.numbers.push(number);
        }
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
    order: &'a [usize; 3],
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
            return self.add(0x2000 + self.order[node] as u64);
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
    let number: u64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (VERSIONS..UIDS + 1_000_000_000).contains(&number).then_some(number)
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 29)
}
