//! Ranges of lock names, ordered by bytes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::name::{Invalid, LockName, NamePrefix, text_type};

text_type! {
    /// Where the names of one group end and those of the next begin: the first text of the next one. It is what a
    /// name could begin with, and need be no name itself: `m`, `billing/`.
    Boundary
}

impl Boundary {
    /// Parses a boundary, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        const FIELD: &str = "boundary";
        if text.is_empty() {
            return Err(Invalid::new(FIELD, "must not be empty: nothing comes before the first name"));
        }
        match NamePrefix::parse(text) {
            Ok(_) => Ok(Self(text.into())),
            Err(Invalid { problem, .. }) => Err(Invalid::new(FIELD, problem)),
        }
    }

    /// Before all names. No group is told apart by it, so it cannot be parsed.
    pub(crate) fn lowest() -> Self {
        Self("".into())
    }

    /// True if this name belongs in front of it.
    pub fn is_behind(&self, name: &LockName) -> bool {
        name.as_str() < self.as_str()
    }

    /// True if it cuts what a subtree claim on this name covers: the name itself and all names below it. What lies
    /// between `a` and `a/`, `a-b` for one, is not below `a`. A boundary there cuts all the same: `a` is in front of
    /// it, and `a/b` behind.
    pub fn is_inside_subtree(&self, name: &LockName) -> bool {
        // '0' comes right after '/'.
        let rest = self.as_str().strip_prefix(name.as_str());
        rest.is_some_and(|rest| rest.as_bytes().first().is_some_and(|next| *next < b'0'))
    }

    /// The names whose subtrees it cuts, from the top down, names or not: `a` and `a/b` for `a/b-c`.
    pub(crate) fn subtrees_around(&self) -> impl Iterator<Item = &str> {
        let ends = (1..self.0.len()).filter(|end| self.0.as_bytes()[*end] < b'0');
        ends.map(|end| &self.0[..end])
    }
}

/// The names from one boundary to the next, without the second.
///
/// Invariant: `from` < `to`, if there is a `to`.
#[derive(Clone, PartialEq, Eq)]
pub struct NameRange {
    from: Boundary,
    /// None: up to the last name.
    to: Option<Boundary>,
}

impl NameRange {
    /// All names.
    pub fn whole() -> Self {
        Self { from: Boundary::lowest(), to: None }
    }

    /// The range between two boundaries; from the first name and to the last one where there is none. Nothing if
    /// there is nothing between them.
    pub fn between(from: Option<Boundary>, to: Option<Boundary>) -> Option<Self> {
        let from = from.unwrap_or_else(Boundary::lowest);
        to.as_ref().is_none_or(|to| from < *to).then_some(Self { from, to })
    }

    /// Where it begins. Empty if that is at the first name.
    pub fn from(&self) -> &Boundary {
        &self.from
    }

    /// Where it ends; nothing if it goes to the last name.
    pub fn to(&self) -> Option<&Boundary> {
        self.to.as_ref()
    }

    /// True if all names are in it.
    pub fn is_whole(&self) -> bool {
        self.from.as_str().is_empty() && self.to.is_none()
    }

    /// True if the name is in it.
    pub fn contains(&self, name: &LockName) -> bool {
        !self.from.is_behind(name) && self.to.as_ref().is_none_or(|to| to.is_behind(name))
    }

    /// True if the name is in it, and all names below that one.
    pub fn contains_subtree(&self, name: &LockName) -> bool {
        self.contains(name) && self.splits_subtree(name).is_none()
    }

    /// The end of the range that cuts what a subtree claim on this name covers, if one does.
    pub fn splits_subtree(&self, name: &LockName) -> Option<&Boundary> {
        let ends = [Some(&self.from), self.to.as_ref()].into_iter().flatten();
        ends.into_iter().find(|end| end.is_inside_subtree(name))
    }

    /// True if it has names that begin with this prefix.
    pub fn overlaps(&self, prefix: &NamePrefix) -> bool {
        let prefix = prefix.as_str();
        let begins_in_time = self.from.as_str() <= prefix || self.from.as_str().starts_with(prefix);
        begins_in_time && self.to.as_ref().is_none_or(|to| prefix < to.as_str())
    }

    /// What comes before a boundary, and what comes from it on. Nothing if it does not lie inside: a part would be
    /// empty.
    pub fn split_at(&self, at: &Boundary) -> Option<(Self, Self)> {
        let first = Self::between(Some(self.from.clone()), Some(at.clone()))?;
        let second = Self::between(Some(at.clone()), self.to.clone())?;
        Some((first, second))
    }
}

impl fmt::Display for NameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Some(to) => write!(f, "[{:?}, {to:?})", self.from),
            None => write!(f, "[{:?}, …)", self.from),
        }
    }
}

impl fmt::Debug for NameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundary(text: &str) -> Boundary {
        Boundary::parse(text).unwrap()
    }

    fn name(text: &str) -> LockName {
        LockName::parse(text).unwrap()
    }

    #[test]
    fn a_boundary_is_what_a_name_could_begin_with() {
        for good in ["m", "billing/", "/", "a/b", "0"] {
            assert_eq!(boundary(good).as_str(), good);
        }
        for bad in ["", "a//b", "a\nb", "../a", &"x".repeat(513)] {
            assert_eq!(Boundary::parse(bad).unwrap_err().field, "boundary", "{bad:?}");
        }
    }

    #[test]
    fn a_subtree_is_cut_where_one_of_its_names_is_in_front_and_one_behind() {
        for inside in ["a/", "a/b", "a-", "a.b", "a/\u{10ffff}", "a "] {
            assert!(boundary(inside).is_inside_subtree(&name("a")), "{inside}");
        }
        // The name itself may be the first behind the boundary.
        for outside in ["a", "a0", "ab", "a0/b", "b", "0"] {
            assert!(!boundary(outside).is_inside_subtree(&name("a")), "{outside}");
        }
        let around = |text: &str| boundary(text).subtrees_around().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(around("a/b-c"), ["a", "a/b"]);
        assert_eq!(around("/a"), [""; 0]);
        assert_eq!(around("m"), [""; 0]);
    }

    #[test]
    fn a_range_ends_before_its_second_boundary() {
        let range = NameRange::between(Some(boundary("b")), Some(boundary("d/"))).unwrap();
        for inside in ["b", "b/x", "c", "d", "d-"] {
            assert!(range.contains(&name(inside)), "{inside}");
        }
        for outside in ["a", "a/z", "d/a", "d0", "e"] {
            assert!(!range.contains(&name(outside)), "{outside}");
        }
        assert_eq!(range.splits_subtree(&name("d")), Some(&boundary("d/")));
        assert!(range.contains(&name("d")) && !range.contains_subtree(&name("d")));
        assert!(range.contains_subtree(&name("c")));
        assert_eq!(range.to_string(), r#"["b", "d/")"#);
        assert_eq!(NameRange::whole().to_string(), r#"["", …)"#);
        assert_eq!(NameRange::between(Some(boundary("b")), Some(boundary("b"))), None);
    }

    #[test]
    fn a_range_is_split_inside_only() {
        let range = NameRange::between(Some(boundary("b")), Some(boundary("d"))).unwrap();
        let (first, second) = range.split_at(&boundary("c")).unwrap();
        assert_eq!((first.from(), first.to()), (&boundary("b"), Some(&boundary("c"))));
        assert_eq!((second.from(), second.to()), (&boundary("c"), Some(&boundary("d"))));
        for outside in ["a", "b", "d", "e"] {
            assert_eq!(range.split_at(&boundary(outside)), None, "{outside}");
        }
        let (first, second) = NameRange::whole().split_at(&boundary("m")).unwrap();
        assert_eq!((first.from().as_str(), second.to()), ("", None));
        assert!(NameRange::whole().is_whole() && !first.is_whole() && !second.is_whole());
    }
}
