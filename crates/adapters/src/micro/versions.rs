//! Two buffers that take turns: readers have a whole version, the writer makes the next one.

use crate::sync::{Arc, Mutex, lock};

/// Published value and the buffer of the next one.
///
/// A reader holds the version that it took as long as it likes. A writer fills the spare buffer and
/// publishes it; the former version becomes the spare. Where readers still hold that, the writer
/// takes a new buffer, and the memory of the old one goes with its last reader.
pub(crate) struct Versions<T> {
    current: Mutex<Arc<T>>,
    /// The version before the current one; `None` before the first update.
    spare: Mutex<Option<Arc<T>>>,
}

/// Buffer that a writer fills.
pub(crate) enum Next<'a, T> {
    /// The version before the current one: nobody reads it.
    Former(&'a mut T),
    /// A new buffer.
    New(&'a mut T),
}

impl<T> Versions<T> {
    pub(crate) fn new(first: T) -> Self {
        Self { current: Mutex::new(Arc::new(first)), spare: Mutex::new(None) }
    }

    /// The current version.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&lock(&self.current))
    }

    /// Publishes the next version: `fill` gets the current one and the buffer, which `new` makes
    /// where readers hold the former version. Writers take turns; readers wait for none of this.
    ///
    /// # Errors
    /// Errors of `new` and `fill`. The current version stays; the buffer is given up.
    pub(crate) fn update<R, E>(
        &self,
        new: impl FnOnce(&T) -> Result<T, E>,
        fill: impl FnOnce(&T, Next<'_, T>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut spare = lock(&self.spare);
        let current = self.current();
        // Taken out, so that a half-filled buffer is never seen again.
        let mut former = spare.take();
        let (mut next, result) = match former.as_mut().and_then(Arc::get_mut) {
            Some(buffer) => {
                let result = fill(&current, Next::Former(buffer))?;
                (former.expect("it was there"), result)
            }
            None => {
                let mut buffer = new(&current)?;
                let result = fill(&current, Next::New(&mut buffer))?;
                (Arc::new(buffer), result)
            }
        };
        std::mem::swap(&mut *lock(&self.current), &mut next);
        *spare = Some(next);
        Ok(result)
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    /// Two values that are equal in every whole version.
    type Pair = [usize; 2];

    fn add_one(versions: &Versions<Pair>) -> Result<(), ()> {
        versions.update(
            |_| Ok([0; 2]),
            |current, next| {
                let (Next::Former(next) | Next::New(next)) = next;
                next[0] = current[0] + 1;
                loom::thread::yield_now();
                next[1] = current[1] + 1;
                Ok(())
            },
        )
    }

    #[test]
    fn readers_see_whole_versions_in_order() {
        loom::model(|| {
            let versions = Arc::new(Versions::new([0; 2]));
            let reader = {
                let versions = Arc::clone(&versions);
                loom::thread::spawn(move || {
                    let first = versions.current();
                    assert_eq!(first[0], first[1]);
                    let second = versions.current();
                    assert_eq!(second[0], second[1]);
                    assert!(second[0] >= first[0]);
                    // The version that a reader holds is not written to.
                    assert_eq!(first[0], first[1]);
                })
            };
            add_one(&versions).unwrap();
            add_one(&versions).unwrap();
            reader.join().unwrap();
            assert_eq!(*versions.current(), [2, 2]);
        });
    }

    #[test]
    fn no_update_of_two_writers_is_lost() {
        loom::model(|| {
            let versions = Arc::new(Versions::new([0; 2]));
            let writer = {
                let versions = Arc::clone(&versions);
                loom::thread::spawn(move || add_one(&versions).unwrap())
            };
            add_one(&versions).unwrap();
            writer.join().unwrap();
            assert_eq!(*versions.current(), [2, 2]);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_former_buffer_is_used_again_unless_it_is_read() {
        let versions = Versions::new(vec![0]);
        let update = |reader: &Versions<Vec<i32>>| {
            reader.update(
                |current| Ok::<_, ()>(current.clone()),
                |current, next| {
                    let is_former = matches!(next, Next::Former(_));
                    let (Next::Former(next) | Next::New(next)) = next;
                    next[0] = current[0] + 1;
                    Ok(is_former)
                },
            )
        };
        assert_eq!(update(&versions), Ok(false), "there is no former version yet");
        assert_eq!(update(&versions), Ok(true));
        let held = versions.current();
        assert_eq!(update(&versions), Ok(true), "the reader has the version that is now the former");
        assert_eq!(update(&versions), Ok(false));
        assert_eq!((held[0], versions.current()[0]), (2, 4));
    }

    #[test]
    fn an_update_that_fails_changes_nothing() {
        let versions = Versions::new(1);
        let failed = versions.update(
            |_| Ok(0),
            |_, next| {
                let (Next::Former(next) | Next::New(next)) = next;
                *next = 7;
                Err::<(), _>("no")
            },
        );
        assert_eq!((failed, *versions.current()), (Err("no"), 1));
        versions.update(|_| Ok::<_, ()>(5), |_, _| Ok(())).unwrap();
        assert_eq!(*versions.current(), 5);
    }
}
