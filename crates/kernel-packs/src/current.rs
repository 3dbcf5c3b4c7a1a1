//! Value that is replaced while threads read it, without a lock in their loops.

use std::sync::atomic::Ordering;

use crate::sync::{Arc, AtomicU64, Mutex, lock};

/// Published value. Each thread that uses it has a [`Reader`].
pub(crate) struct Current<T> {
    /// Number of replacements. It changes under the lock of the value.
    generation: AtomicU64,
    value: Mutex<T>,
}

/// One thread's copy of the published value.
pub(crate) struct Reader<T> {
    source: Arc<Current<T>>,
    generation: u64,
    value: T,
}

impl<T: Clone> Current<T> {
    pub(crate) fn new(first: T) -> Self {
        Self { generation: AtomicU64::new(0), value: Mutex::new(first) }
    }

    /// Publishes a value: reads that begin after the return have it. Returns the former one.
    pub(crate) fn publish(&self, next: T) -> T {
        let mut value = lock(&self.value);
        let former = std::mem::replace(&mut *value, next);
        // Release: a reader that sees the number takes the lock after this thread, or waits for it.
        self.generation.fetch_add(1, Ordering::Release);
        former
    }

    /// The value and its number.
    fn load(&self) -> (u64, T) {
        let value = lock(&self.value);
        (self.generation.load(Ordering::Relaxed), value.clone())
    }
}

impl<T: Clone> Reader<T> {
    pub(crate) fn new(source: &Arc<Current<T>>) -> Self {
        let (generation, value) = source.load();
        Self { source: Arc::clone(source), generation, value }
    }

    /// The current value: one atomic load, and the lock only after a replacement.
    #[inline]
    pub(crate) fn get(&mut self) -> &T {
        if self.source.generation.load(Ordering::Acquire) != self.generation {
            self.refresh();
        }
        &self.value
    }

    #[cold]
    fn refresh(&mut self) {
        // The former value is dropped after the lock is released: it may be the last copy.
        (self.generation, self.value) = self.source.load();
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// Two equal numbers, and a count of the values that are alive.
    struct Pair {
        numbers: [usize; 2],
        alive: Arc<AtomicUsize>,
    }

    impl Pair {
        fn new(number: usize, alive: &Arc<AtomicUsize>) -> Arc<Self> {
            alive.fetch_add(1, Ordering::Relaxed);
            Arc::new(Self { numbers: [number; 2], alive: Arc::clone(alive) })
        }

        /// The number, of a value that is whole and alive.
        fn number(&self) -> usize {
            let [first, second] = self.numbers;
            assert_eq!(first, second);
            first
        }
    }

    impl Drop for Pair {
        fn drop(&mut self) {
            self.numbers = [usize::MAX, 0];
            assert_ne!(self.alive.fetch_sub(1, Ordering::Relaxed), 0, "dropped twice");
        }
    }

    #[test]
    fn readers_see_whole_values_in_order_and_each_is_dropped_once() {
        loom::model(|| {
            let alive = Arc::new(AtomicUsize::new(0));
            let current = Arc::new(Current::new(Pair::new(0, &alive)));
            let mut reader = Reader::new(&current);
            let thread = thread::spawn(move || {
                let first = reader.get().number();
                // A call that runs on this value while others are published.
                let held = Arc::clone(reader.get());
                let second = held.number();
                let third = reader.get().number();
                assert!(first <= second && second <= third && third <= 2);
                assert_eq!(held.number(), second, "a held value stays");
            });
            for number in 1..=2 {
                assert_eq!(current.publish(Pair::new(number, &alive)).number(), number - 1);
            }
            thread.join().unwrap();
            assert_eq!(alive.load(Ordering::Relaxed), 1, "the current one is left");
            drop(current);
            assert_eq!(alive.load(Ordering::Relaxed), 0);
        });
    }

    /// A reader that reads while `publish` runs, and after it.
    fn read_after(publish: fn(&Current<Arc<Pair>>, Arc<Pair>)) {
        loom::model(move || {
            let alive = Arc::new(AtomicUsize::new(0));
            let current = Arc::new(Current::new(Pair::new(0, &alive)));
            let is_published = Arc::new(AtomicUsize::new(0));
            let mut reader = Reader::new(&current);
            let thread = thread::spawn({
                let is_published = Arc::clone(&is_published);
                move || {
                    reader.get().number();
                    let is_after = is_published.load(Ordering::Acquire) == 1;
                    let number = reader.get().number();
                    assert!(!is_after || number == 1, "an old value after the publication");
                }
            });
            publish(&current, Pair::new(1, &alive));
            is_published.store(1, Ordering::Release);
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_read_after_a_publication_has_its_value() {
        read_after(|current, next| drop(current.publish(next)));
    }

    #[test]
    #[should_panic(expected = "an old value after the publication")]
    fn a_number_that_changes_before_the_value_is_found() {
        read_after(|current, next| {
            current.generation.fetch_add(1, Ordering::Release);
            drop(std::mem::replace(&mut *lock(&current.value), next));
        });
    }

    #[test]
    fn publications_of_two_threads_are_all_seen() {
        loom::model(|| {
            let alive = Arc::new(AtomicUsize::new(0));
            let current = Arc::new(Current::new(Pair::new(0, &alive)));
            let mut reader = Reader::new(&current);
            let thread = thread::spawn({
                let (current, next) = (Arc::clone(&current), Pair::new(1, &alive));
                move || current.publish(next).number()
            });
            let mut seen = vec![current.publish(Pair::new(2, &alive)).number(), thread.join().unwrap()];
            seen.push(reader.get().number());
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2], "each value is replaced or current");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_follow_publications() {
        let current = Arc::new(Current::new(1));
        let (mut early, mut other) = (Reader::new(&current), Reader::new(&current));
        assert_eq!(*early.get(), 1);
        assert_eq!(current.publish(2), 1);
        assert_eq!((*early.get(), *early.get()), (2, 2));
        current.publish(3);
        assert_eq!((*other.get(), *early.get()), (3, 3), "steps are left out");
        assert_eq!(*Reader::new(&current).get(), 3);
    }

    #[test]
    fn a_reader_keeps_the_value_that_it_read_last() {
        let first = Arc::new(1);
        let current = Arc::new(Current::new(first.clone()));
        let mut reader = Reader::new(&current);
        drop(current.publish(Arc::new(2)));
        assert_eq!(Arc::strong_count(&first), 2, "the reader's");
        assert_eq!(**reader.get(), 2);
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
