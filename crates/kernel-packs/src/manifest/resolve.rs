//! Fallbacks of the kernels of a manifest.

use super::{Category, Fallback, Kernel, Manifest};
use crate::error::{Error, Result, field};

impl Manifest {
    /// Replacement of a kernel: its own, that of its category, or else the native kernel if the
    /// category has one.
    pub fn fallback(&self, kernel: &Kernel) -> Fallback {
        let of_category = || {
            let entry = self.fallbacks.iter().find(|entry| entry.category == kernel.category)?;
            // A category's fallback is not its own.
            (entry.fallback != Fallback::Kernel(kernel.id.clone())).then(|| entry.fallback.clone())
        };
        let native = if kernel.category.has_native() { Fallback::Native } else { Fallback::None };
        kernel.fallback.clone().or_else(of_category).unwrap_or(native)
    }

    /// Checks that fallbacks exist, are of the same category, and end.
    ///
    /// # Errors
    /// [`Error::Field`], [`Error::Duplicate`].
    pub(super) fn check_fallbacks(&self) -> Result<()> {
        for (index, entry) in self.fallbacks.iter().enumerate() {
            let place = format!("fallbacks[{index}]");
            if self.fallbacks[..index].iter().any(|other| other.category == entry.category) {
                return Err(Error::Duplicate { place, id: entry.category.to_string() });
            }
            self.check_fallback(&format!("{place}.fallback"), entry.category, &entry.fallback)?;
        }
        for (index, kernel) in self.kernels.iter().enumerate() {
            let place = format!("kernels[{index}].fallback");
            if let Some(fallback) = &kernel.fallback {
                self.check_fallback(&place, kernel.category, fallback)?;
            }
            let mut next = self.fallback(kernel);
            let mut steps = 0;
            while let Fallback::Kernel(id) = &next {
                steps += 1;
                let Some(kernel) = self.kernel(id).filter(|_| steps <= self.kernels.len()) else {
                    return Err(field(
                        place,
                        "fallbacks lead in a circle; let the last one be \"native\" or \"none\"",
                    ));
                };
                next = self.fallback(kernel);
            }
        }
        Ok(())
    }

    fn check_fallback(&self, place: &str, category: Category, fallback: &Fallback) -> Result<()> {
        match fallback {
            Fallback::Native if !category.has_native() => {
                Err(field(place, "there is no native kernel of the category other; use \"none\" or a kernel"))
            }
            Fallback::Native | Fallback::None => Ok(()),
            Fallback::Kernel(id) => match self.kernel(id) {
                None => {
                    Err(field(place, "it must be \"native\", \"none\" or the id of a kernel of the pack"))
                }
                Some(kernel) if kernel.category != category => Err(field(
                    place,
                    format!("the kernel is of the category {}, not {category}", kernel.category),
                )),
                Some(_) => Ok(()),
            },
        }
    }
}
