//! Layout of flat parameter slices.

use std::fmt;
use std::ops::Range;

use crate::error::{Error, Result};

/// Names and lengths of the groups of a flat parameter slice, in order, e.g. `final.A [r, d]` and
/// `final.B [d, r]` as `[("final.A", r * d), ("final.B", d * r)]`.
///
/// Parameters, gradients, Fisher information and anchors that belong together have one layout; a
/// slice of another length is an error everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterLayout {
    groups: Vec<(String, Range<usize>)>,
    len: usize,
}

impl ParameterLayout {
    /// Lays groups of the given lengths out behind one another.
    ///
    /// # Errors
    /// [`Error::ParameterGroup`] for no group, an empty one, an empty or repeated name, or a total
    /// beyond `usize`.
    pub fn new<N: Into<String>>(groups: impl IntoIterator<Item = (N, usize)>) -> Result<Self> {
        let mut laid: Vec<(String, Range<usize>)> = Vec::new();
        let mut len = 0_usize;
        for (name, group_len) in groups {
            let name = name.into();
            let refuse = |reason| Err(Error::ParameterGroup { name: name.clone(), reason });
            if name.is_empty() {
                return refuse("its name is empty");
            }
            if laid.iter().any(|(other, _)| *other == name) {
                return refuse("it is there twice");
            }
            if group_len == 0 {
                return refuse("it has no values");
            }
            let Some(end) = len.checked_add(group_len) else { return refuse("the layout is too long") };
            laid.push((name, len..end));
            len = end;
        }
        if laid.is_empty() {
            return Err(Error::ParameterGroup { name: String::new(), reason: "there is none" });
        }
        Ok(Self { groups: laid, len })
    }

    /// Number of values of all groups.
    #[expect(clippy::len_without_is_empty, reason = "a layout is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The groups with their places in the slice, in order.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&str, Range<usize>)> {
        self.groups.iter().map(|(name, range)| (name.as_str(), range.clone()))
    }

    /// Place of a group in the slice.
    pub fn range(&self, name: &str) -> Option<Range<usize>> {
        self.groups().find(|(group, _)| *group == name).map(|(_, range)| range)
    }

    /// Checks the length of a slice, called `what` in the error, against the layout.
    ///
    /// # Errors
    /// [`Error::Dimension`].
    pub fn check(&self, what: &'static str, values: &[f32]) -> Result<()> {
        match values.len() == self.len {
            true => Ok(()),
            false => Err(Error::Dimension { what, expected: self.len, got: values.len() }),
        }
    }

    /// As [`check`](Self::check), and that every value is finite.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`].
    pub fn check_finite(&self, what: &'static str, values: &[f32]) -> Result<()> {
        self.check(what, values)?;
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(()),
            false => Err(Error::NotFinite { what }),
        }
    }

    /// Checks that two layouts are equal.
    ///
    /// # Errors
    /// [`Error::Layout`].
    pub fn check_same(&self, other: &Self) -> Result<()> {
        match self == other {
            true => Ok(()),
            false => Err(Error::Layout { expected: self.to_string(), got: other.to_string() }),
        }
    }
}

/// `final.A 1024, final.B 1024`.
impl fmt::Display for ParameterLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, range)) in self.groups().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name} {}", range.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_lie_behind_one_another() {
        let layout = ParameterLayout::new([("final.A", 6), ("final.B", 3)]).expect("a layout");
        assert_eq!(layout.len(), 9);
        assert_eq!(layout.range("final.B"), Some(6..9));
        assert_eq!(layout.range("logits.C"), None);
        assert_eq!(layout.to_string(), "final.A 6, final.B 3");
    }

    #[test]
    fn bad_groups_and_other_layouts_are_errors() {
        let error = |groups: &[(&str, usize)]| {
            ParameterLayout::new(groups.iter().copied()).expect_err("refused").to_string()
        };
        assert!(error(&[]).contains("there is none"));
        assert!(error(&[("a", 0)]).contains("no values"));
        assert!(error(&[("a", 1), ("a", 1)]).contains("twice"));
        assert!(error(&[("", 1)]).contains("name is empty"));
        assert!(error(&[("a", usize::MAX), ("b", 1)]).contains("too long"));

        let layout = ParameterLayout::new([("a", 2)]).expect("a layout");
        let other = ParameterLayout::new([("b", 2)]).expect("a layout");
        assert!(matches!(layout.check_same(&other), Err(Error::Layout { .. })));
        assert!(matches!(
            layout.check("gradient", &[0.0]),
            Err(Error::Dimension { expected: 2, got: 1, .. })
        ));
        assert!(matches!(layout.check_finite("x", &[0.0, f32::NAN]), Err(Error::NotFinite { .. })));
    }
}
