//! Limits the memory of one store, all its memories and tables together.

use wasmtime::ResourceLimiter;

/// Core instances of a store. A Rust component has about ten, a Python one with native modules about a hundred.
pub(crate) const INSTANCES: usize = 256;
/// Tables of a store.
const TABLES: usize = 256;
/// Bytes of an element of a table.
const ELEMENT: usize = 8;
/// Elements of all tables.
const TABLE_ELEMENTS: usize = 1 << 18;
/// Linear memories of a store.
const MEMORIES: usize = 32;

/// Sums over the whole store; wasmtime's own `StoreLimits` bounds each memory by itself.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory: Sum,
    tables: Sum,
}

/// The granted memory. It only grows: a growth that fails after it was granted stays counted, since a guest must not be
/// able to make the host forget.
#[derive(Debug)]
struct Sum {
    used: usize,
    max: usize,
    exceeded: bool,
}

impl Sum {
    fn new(max: usize) -> Self {
        Self { used: 0, max, exceeded: false }
    }

    /// Returns whether a memory or table may grow. Beyond its own maximum it can't, which is not counted here.
    fn grow(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> bool {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return false;
        }
        let sum = self.used.checked_add(desired.saturating_sub(current)).filter(|sum| *sum <= self.max);
        self.used = sum.unwrap_or(self.used);
        self.exceeded |= sum.is_none();
        sum.is_some()
    }
}

impl Limiter {
    /// Allows that many bytes of memories and tables.
    pub(crate) fn new(memory_bytes: usize) -> Self {
        Self { memory: Sum::new(memory_bytes), tables: Sum::new(TABLE_ELEMENTS) }
    }

    /// Returns the bytes taken.
    pub(crate) fn used(&self) -> u64 {
        self.memory.used as u64
    }

    /// Returns the refused request, if there was one: a guest that traps afterwards did so for lack of it.
    pub(crate) fn exceeded(&self) -> Option<String> {
        let memory = self.memory.exceeded.then(|| {
            format!(
                "memory: more than {}; limits.memory of its DiscoveryHandler allows more",
                quantity(self.memory.max)
            )
        });
        memory.or_else(|| self.tables.exceeded.then(|| format!("tables: more than {} elements", self.tables.max)))
    }
}

/// Formats bytes as Kubernetes writes quantities.
fn quantity(bytes: usize) -> String {
    let is_in_mebibytes = bytes != 0 && bytes.is_multiple_of(1 << 20);
    if is_in_mebibytes { format!("{}Mi", bytes >> 20) } else { format!("{bytes} bytes") }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.memory.grow(current, desired, maximum))
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let bytes = desired.saturating_sub(current).saturating_mul(ELEMENT);
        Ok(self.tables.grow(current, desired, maximum) && self.memory.grow(0, bytes, None))
    }

    fn instances(&self) -> usize {
        INSTANCES
    }

    fn tables(&self) -> usize {
        TABLES
    }

    fn memories(&self) -> usize {
        MEMORIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_summed_over_the_store() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        assert_eq!(limiter.exceeded(), None);
        assert!(!limiter.memory_growing(40, 41, None).unwrap());
        assert!(limiter.exceeded().unwrap().contains("100 bytes"));
    }

    #[test]
    fn growth_beyond_a_memory_s_own_maximum_is_not_counted() {
        let mut limiter = Limiter::new(100);
        assert!(!limiter.memory_growing(0, 80, Some(60)).unwrap());
        assert_eq!(limiter.exceeded(), None);
        assert!(limiter.memory_growing(0, 100, Some(100)).unwrap());
    }

    #[test]
    fn tables_are_summed_over_the_store() {
        let mut limiter = Limiter::new(8 * TABLE_ELEMENTS);
        assert!(limiter.table_growing(0, TABLE_ELEMENTS, None).unwrap());
        assert!(!limiter.table_growing(0, 1, None).unwrap());
        assert!(limiter.exceeded().unwrap().starts_with("tables"));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let mut limiter = Limiter::new(usize::MAX);
        assert!(limiter.memory_growing(0, usize::MAX, None).unwrap());
        assert!(!limiter.memory_growing(0, 1, None).unwrap());
    }

    #[test]
    fn tables_count_as_memory() {
        let mut limiter = Limiter::new(40);
        assert!(limiter.table_growing(0, 4, None).unwrap());
        assert!(!limiter.memory_growing(0, 9, None).unwrap());
        assert!(limiter.exceeded().unwrap().contains("40 bytes"));
    }
}
