//! Claims by path: what is claimed as a subtree at a path, and what is claimed below it.
//!
//! Every path above a claimed name knows of the claim, so that a subtree finds its rivals below it at once,
//! however many locks there are. A name may have hundreds of segments, and most paths above it know of
//! nothing else. So paths are a tree of segments, and a path has a *node* of its own only if it must. It is
//! *implied* if
//!
//! - nothing is claimed as a subtree at it,
//! - what is claimed below it is exactly what is claimed below a path right below it, and
//! - that is little: the first to claim something beside it copies it.
//!
//! A claim adds two nodes at most where little is claimed, at any depth. Where much is claimed, many
//! claims share the nodes of the paths above them.
//!
//! Which paths have nodes follows from the claims alone, and never from their order or from what ended
//! before: replicas that agree on the claims are equal here too. No node keeps the text of its path. It
//! points into the name of a lock.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::claim::{Claim, HoldClaims, Mode, Scope, WaitClaims};
use crate::mutants;
use crate::name::{LeaseId, LockName, Ticket};

/// So many leases that hold below a path, and so many waits, are little.
const LITTLE: usize = 8;

/// All holds and waits of a state, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    top: Branches,
}

/// The next nodes below a path, by the first segment that they do not have in common with it.
type Branches = BTreeMap<Segment, Box<Node>>;

/// A path that is not implied.
///
/// Invariants:
/// - Something is claimed as a subtree at the path, or anyhow below it.
/// - All paths between this node and the one above it are implied by this one.
#[derive(Clone, Debug)]
struct Node {
    /// A name that was claimed at the path or below it.
    name: LockName,
    /// The path is the name's text up to here.
    end: usize,
    place: PathClaims,
    below: Branches,
}

/// What a path knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PathClaims {
    holds_below: HoldClaims,
    /// Nothing for most places.
    rare: Option<Box<RareClaims>>,
}

/// What few places have. Invariant: something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RareClaims {
    subtree_holds: HoldClaims,
    subtree_waits: WaitClaims,
    waits_below: WaitClaims,
}

/// One segment of a name, with the `/` before it.
#[derive(Clone)]
struct Segment {
    name: LockName,
    start: u16,
    end: u16,
}

/// Where a rival was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RivalAt<'a, T> {
    /// It claims this very path as a subtree, and so covers all of the claim's name.
    Above(&'a str, T),
    /// It claims something below the claim's name.
    Below(T),
}

impl Paths {
    pub(crate) fn hold(&mut self, lock: &LockName, lease: LeaseId, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, is_above| match is_above {
            true => place.holds_below.add(lease, mode),
            false => place.change_rare(|rare| rare.subtree_holds.add(lease, mode)),
        });
    }

    pub(crate) fn free(&mut self, lock: &LockName, lease: LeaseId, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, is_above| match is_above {
            true => place.holds_below.take(lease, mode),
            false => place.change_rare(|rare| rare.subtree_holds.take(lease, mode)),
        });
    }

    pub(crate) fn wait(&mut self, lock: &LockName, lease: LeaseId, ticket: Ticket, mode: Mode, scope: Scope) {
        self.change_waits(lock, scope, |waits| waits.insert(ticket, lease, mode));
    }

    pub(crate) fn leave(&mut self, lock: &LockName, ticket: Ticket, mode: Mode, scope: Scope) {
        self.change_waits(lock, scope, |waits| waits.remove(ticket, mode));
    }

    fn change_waits(&mut self, lock: &LockName, scope: Scope, change: impl Fn(&mut WaitClaims)) {
        self.change(lock, scope, |place, is_above| {
            place.change_rare(|rare| match is_above {
                true => change(&mut rare.waits_below),
                false => change(&mut rare.subtree_waits),
            });
        });
    }

    /// Changes every place that a claim on the lock shows up in: with `true` those above it, with
    /// `false` its own, if it is a subtree.
    fn change(&mut self, lock: &LockName, scope: Scope, change: impl Fn(&mut PathClaims, bool)) {
        let parent_end = lock.parent_end();
        let end = match scope {
            Scope::Name => parent_end,
            Scope::Subtree => lock.as_str().len(),
        };
        if end > 0 {
            change_below(&mut self.top, 0, &Way { lock, parent_end, end }, &change);
        }
    }

    /// A hold at another name that is a rival of the claim.
    pub(crate) fn rival_hold<'a>(&self, claim: &'a Claim) -> Option<RivalAt<'a, LeaseId>> {
        let above = self.rare_above(&claim.lock).find_map(|(path, rare)| {
            let lease = rare.subtree_holds.rival(claim)?;
            Some(RivalAt::Above(path, lease))
        });
        let above = above.filter(|_| !mutants::A_SUBTREE_ABOVE_IS_NOT_SEEN.is_active());
        above.or_else(|| {
            if claim.scope == Scope::Name || mutants::A_SUBTREE_DOES_NOT_SEE_WHAT_IS_BELOW.is_active() {
                return None;
            }
            self.node(&claim.lock)?.place.holds_below.rival(claim).map(RivalAt::Below)
        })
    }

    /// A wait at another name, before that place in the order, that is a rival of the claim.
    pub(crate) fn rival_wait<'a>(&self, claim: &'a Claim, before: Ticket) -> Option<RivalAt<'a, Ticket>> {
        let above = self.rare_above(&claim.lock).find_map(|(path, rare)| {
            let ticket = rare.subtree_waits.rival(claim, before)?;
            Some(RivalAt::Above(path, ticket))
        });
        above.or_else(|| match claim.scope {
            Scope::Name => None,
            Scope::Subtree => {
                let rare = self.node(&claim.lock)?.place.rare.as_ref()?;
                rare.waits_below.rival(claim, before).map(RivalAt::Below)
            }
        })
    }

    /// How many wait for this very name as a subtree.
    pub(crate) fn subtree_waiter_count(&self, lock: &LockName) -> usize {
        let node = self.node(lock).filter(|node| node.end == lock.as_str().len());
        node.and_then(|node| node.place.rare.as_ref()).map_or(0, |rare| rare.subtree_waits.len())
    }

    /// The names above this one that are held as subtrees, from the top down.
    pub(crate) fn held_above<'a>(&self, lock: &'a LockName) -> impl Iterator<Item = &'a str> {
        self.rare_above(lock).filter(|(_, rare)| !rare.subtree_holds.is_none()).map(|(path, _)| path)
    }

    /// The names above this one that are waited for as subtrees, from the top down.
    pub(crate) fn awaited_above<'a>(&self, lock: &'a LockName) -> impl Iterator<Item = &'a str> {
        self.rare_above(lock).filter(|(_, rare)| !rare.subtree_waits.is_empty()).map(|(path, _)| path)
    }

    /// What is rare at the paths above a name, from the top down.
    fn rare_above<'a>(&self, lock: &'a LockName) -> impl Iterator<Item = (&'a str, &RareClaims)> {
        let (mut branches, mut start) = (&self.top, 0);
        let nodes = std::iter::from_fn(move || {
            let first_end = lock.segment_end(start);
            if first_end == lock.as_str().len() {
                return None;
            }
            let node = branches.get(&lock.as_str()[start..first_end])?;
            let is_above = node.shared_end(lock, first_end) == node.end && node.end < lock.as_str().len();
            (branches, start) = (&node.below, node.end);
            is_above.then_some(node)
        });
        nodes.filter_map(|node| Some((&lock.as_str()[..node.end], node.place.rare.as_deref()?)))
    }

    /// The node at a path, or the one that implies it.
    fn node(&self, path: &LockName) -> Option<&Node> {
        let (mut branches, mut start) = (&self.top, 0);
        loop {
            let first_end = path.segment_end(start);
            let node = branches.get(&path.as_str()[start..first_end])?;
            match node.shared_end(path, first_end) {
                shared if shared == path.as_str().len() => return Some(node),
                shared if shared == node.end => (branches, start) = (&node.below, shared),
                _ => return None,
            }
        }
    }
}

/// The paths that a claim shows up at.
struct Way<'a> {
    lock: &'a LockName,
    /// The lowest path above the lock, 0 if there is none. It has a node: the claim is below it, and not
    /// below any path that is below it.
    parent_end: usize,
    /// Of the lowest path: the lock's own for a subtree, or its parent's.
    end: usize,
}

/// Changes the places on the way, from this path down, and leaves nodes exactly where they are needed.
fn change_below(
    branches: &mut Branches,
    start: usize,
    way: &Way<'_>,
    change: &impl Fn(&mut PathClaims, bool),
) {
    let Way { lock, parent_end, end } = *way;
    let first_end = lock.segment_end(start);
    let first = &lock.as_str()[start..first_end];
    let next_needed = if start < parent_end { parent_end } else { end };
    let node = match branches.get_mut(first) {
        Some(node) => node,
        None => branches.entry(Segment::new(lock, start, first_end)).or_insert_with(|| {
            let (name, place, below) = (lock.clone(), PathClaims::default(), Branches::new());
            Box::new(Node { name, end: next_needed, place, below })
        }),
    };
    let shared_end = node.shared_end(lock, first_end).min(next_needed);
    if shared_end < node.end {
        node.split(shared_end);
    }
    change(&mut node.place, shared_end < lock.as_str().len());
    if shared_end < end {
        change_below(&mut node.below, shared_end, way, change);
    }
    if node.place.is_empty() {
        branches.remove(first);
    } else if !node.place.is_little() {
        node.spell_out(first_end);
    } else {
        node.join();
    }
}

impl Node {
    fn path(&self) -> &str {
        &self.name.as_str()[..self.end]
    }

    /// Where the lowest path ends that is at or above both. Their first segments, up to `from`, are equal.
    fn shared_end(&self, name: &LockName, from: usize) -> usize {
        let (own, other) = (self.name.as_str().as_bytes(), name.as_str().as_bytes());
        let end_max = self.end.min(other.len());
        let is_end = |at| self.name.is_segment_end(at) && name.is_segment_end(at);
        // Mostly one of the two is above the other.
        if own[from..end_max] == other[from..end_max] && is_end(end_max) {
            return end_max;
        }
        let equal = own[from..end_max].iter().zip(&other[from..end_max]).take_while(|(a, b)| a == b).count();
        (from..=from + equal).rev().find(|at| is_end(*at)).unwrap_or(from)
    }

    /// Gives a path that this node implies a node of its own, above it.
    fn split(self: &mut Box<Self>, end: usize) {
        let upper = Self { name: self.name.clone(), end, place: self.place.below(), below: Branches::new() };
        let lower = std::mem::replace(self, Box::new(upper));
        self.below.insert(Segment::new(&lower.name, end, lower.name.segment_end(end)), lower);
    }

    /// Gives all paths that it implies nodes of their own: they know too much to be copied later.
    fn spell_out(self: &mut Box<Self>, first_end: usize) {
        let mut end = first_end;
        let mut node = self;
        while end < node.end {
            node.split(end);
            node = node.below.values_mut().next().expect("the lower half of what was split");
            end = node.name.segment_end(end);
        }
    }

    /// Goes if the next node below implies it.
    fn join(self: &mut Box<Self>) {
        if self.below.len() == 1
            && self.place.is_below_only()
            && let Some(only) = self.below.first_entry()
            && only.get().place.is_same_below(&self.place)
        {
            let lower = only.remove();
            *self = lower;
        }
    }
}

// A path is its text, no matter which name it is a part of.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.path() == other.path() && self.place == other.place && self.below == other.below
    }
}

impl Eq for Node {}

impl PathClaims {
    fn is_empty(&self) -> bool {
        self.holds_below.is_none() && self.rare.is_none()
    }

    /// True if little is claimed below it.
    fn is_little(&self) -> bool {
        self.holds_below.len() <= LITTLE && self.waits_below().is_none_or(|waits| waits.len() <= LITTLE)
    }

    /// True if nothing is claimed as a subtree at it.
    fn is_below_only(&self) -> bool {
        self.rare.as_ref().is_none_or(|rare| rare.subtree_holds.is_none() && rare.subtree_waits.is_empty())
    }

    fn is_same_below(&self, other: &Self) -> bool {
        self.holds_below == other.holds_below && self.waits_below() == other.waits_below()
    }

    fn waits_below(&self) -> Option<&WaitClaims> {
        self.rare.as_ref().map(|rare| &rare.waits_below).filter(|waits| !waits.is_empty())
    }

    /// What a path knows that is implied by this one.
    fn below(&self) -> Self {
        let rare = |waits: &WaitClaims| RareClaims { waits_below: waits.clone(), ..RareClaims::default() };
        Self {
            holds_below: self.holds_below.clone(),
            rare: self.waits_below().map(|waits| Box::new(rare(waits))),
        }
    }

    fn change_rare(&mut self, change: impl FnOnce(&mut RareClaims)) {
        let rare = self.rare.get_or_insert_default();
        change(rare);
        let RareClaims { subtree_holds, subtree_waits, waits_below } = &**rare;
        if subtree_holds.is_none() && subtree_waits.is_empty() && waits_below.is_empty() {
            self.rare = None;
        }
    }
}

impl Segment {
    fn new(name: &LockName, start: usize, end: usize) -> Self {
        let short = |at| u16::try_from(at).expect("a name has 512 bytes at most");
        Self { name: name.clone(), start: short(start), end: short(end) }
    }

    fn as_str(&self) -> &str {
        &self.name.as_str()[usize::from(self.start)..usize::from(self.end)]
    }
}

impl Borrow<str> for Segment {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Segment {}

impl PartialOrd for Segment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Segment {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every path with its place, implied or not: what the tree stands for.
    type Model = BTreeMap<String, PathClaims>;

    #[derive(Clone, Debug)]
    struct TestClaim {
        lock: LockName,
        lease: LeaseId,
        /// A wait, and not a hold.
        ticket: Option<Ticket>,
        mode: Mode,
        scope: Scope,
    }

    impl TestClaim {
        fn begin(&self, paths: &mut Paths) {
            let Self { lock, lease, ticket, mode, scope } = self;
            match ticket {
                Some(ticket) => paths.wait(lock, *lease, *ticket, *mode, *scope),
                None => paths.hold(lock, *lease, *mode, *scope),
            }
        }

        fn end(&self, paths: &mut Paths) {
            let Self { lock, lease, ticket, mode, scope } = self;
            match ticket {
                Some(ticket) => paths.leave(lock, *ticket, *mode, *scope),
                None => paths.free(lock, *lease, *mode, *scope),
            }
        }

        fn show(&self, model: &mut Model) {
            for path in self.lock.ancestors() {
                let place = model.entry(path.to_owned()).or_default();
                match self.ticket {
                    Some(ticket) => {
                        place.change_rare(|rare| rare.waits_below.insert(ticket, self.lease, self.mode));
                    }
                    None => place.holds_below.add(self.lease, self.mode),
                }
            }
            if self.scope == Scope::Subtree {
                let place = model.entry(self.lock.to_string()).or_default();
                place.change_rare(|rare| match self.ticket {
                    Some(ticket) => rare.subtree_waits.insert(ticket, self.lease, self.mode),
                    None => rare.subtree_holds.add(self.lease, self.mode),
                });
            }
        }
    }

    fn name(text: &str) -> LockName {
        LockName::parse(text).unwrap()
    }

    fn model_of(claims: &[TestClaim]) -> Model {
        let mut model = Model::new();
        claims.iter().for_each(|claim| claim.show(&mut model));
        model
    }

    /// The rule of the module, said once more.
    fn is_implied(path: &str, place: &PathClaims, model: &Model) -> bool {
        let is_right_below = |other: &str| name(other).ancestors().last() == Some(path);
        let mut right_below = model.iter().filter(|(other, _)| is_right_below(other));
        place.is_below_only() && place.is_little() && right_below.any(|(_, other)| other.is_same_below(place))
    }

    fn nodes_of(branches: &Branches) -> Vec<(String, PathClaims)> {
        let of_node = |node: &Node| {
            let own = (node.path().to_owned(), node.place.clone());
            std::iter::once(own).chain(nodes_of(&node.below)).collect::<Vec<_>>()
        };
        branches.values().flat_map(|node| of_node(node)).collect()
    }

    /// Asserts that nodes are where they are needed, and that all paths are found.
    fn check(paths: &Paths, claims: &[TestClaim], names: &[LockName]) {
        let model = model_of(claims);
        let needed = model.iter().filter(|(path, place)| !is_implied(path, place, &model));
        let needed: Model = needed.map(|(path, place)| (path.clone(), place.clone())).collect();
        let nodes = nodes_of(&paths.top);
        assert_eq!(nodes.len(), needed.len(), "{nodes:?}");
        assert_eq!(nodes.into_iter().collect::<Model>(), needed);
        for name in names {
            let (found, expected) = (paths.node(name), model.get(name.as_str()));
            assert_eq!(found.is_some(), expected.is_some(), "{name}");
            assert!(
                found.zip(expected).is_none_or(|(node, place)| node.place.is_same_below(place)),
                "{name}"
            );
            let rare = |path: &str| model.get(path).and_then(|place| place.rare.as_deref());
            assert_eq!(
                paths.subtree_waiter_count(name),
                rare(name.as_str()).map_or(0, |rare| rare.subtree_waits.len())
            );
            let held =
                name.ancestors().filter(|path| rare(path).is_some_and(|it| !it.subtree_holds.is_none()));
            assert!(paths.held_above(name).eq(held), "{name}");
            let awaited =
                name.ancestors().filter(|path| rare(path).is_some_and(|it| !it.subtree_waits.is_empty()));
            assert!(paths.awaited_above(name).eq(awaited), "{name}");
        }
    }

    fn any_name() -> impl Strategy<Value = LockName> {
        // Deep enough for long ways, and alike enough to meet.
        let segment = prop::sample::select(vec!["a", "a", "a", "b", "a-", "ü"]);
        let segments = prop::collection::vec(segment, 1..8);
        (any::<bool>(), segments).prop_map(|(is_rooted, segments)| {
            name(&format!("{}{}", if is_rooted && segments.len() > 5 { "/" } else { "" }, segments.join("/")))
        })
    }

    fn any_claim() -> impl Strategy<Value = TestClaim> {
        let mode = prop::sample::select(vec![Mode::Exclusive, Mode::Shared]);
        let scope = prop::sample::select(vec![Scope::Name, Scope::Name, Scope::Subtree]);
        (any_name(), 1..20_u64, any::<bool>(), mode, scope).prop_map(|(lock, lease, waits, mode, scope)| {
            // Tickets are given when the claim begins.
            TestClaim { lock, lease: LeaseId(lease), ticket: waits.then_some(Ticket(0)), mode, scope }
        })
    }

    proptest! {
        #[test]
        fn nodes_are_where_claims_need_them_whatever_came_and_went(
            steps in prop::collection::vec((any_claim(), any::<prop::sample::Index>(), 0..3_u8), 1..60)
        ) {
            let names: Vec<LockName> = steps.iter().map(|(claim, ..)| claim.lock.clone()).collect();
            let (mut paths, mut claims) = (Paths::default(), Vec::new());
            for (number, (mut claim, which, what)) in (1..).zip(steps) {
                if what == 0 && !claims.is_empty() {
                    let ended: TestClaim = claims.swap_remove(which.index(claims.len()));
                    ended.end(&mut paths);
                } else {
                    claim.ticket = claim.ticket.map(|_| Ticket(number));
                    claim.begin(&mut paths);
                    claims.push(claim);
                }
                check(&paths, &claims, &names);
            }
            for (count, claim) in claims.iter().enumerate() {
                claim.end(&mut paths);
                check(&paths, &claims[count + 1..], &names);
            }
            prop_assert_eq!(paths, Paths::default());
        }
    }

    #[test]
    fn a_deep_name_has_one_node_and_two_that_part_have_three() {
        let mut paths = Paths::default();
        let deep = vec!["a"; 200].join("/");
        paths.hold(&name(&deep), LeaseId(1), Mode::Exclusive, Scope::Name);
        assert_eq!(nodes_of(&paths.top).len(), 1);
        let other = format!("{}/b/c", vec!["a"; 100].join("/"));
        paths.hold(&name(&other), LeaseId(2), Mode::Exclusive, Scope::Name);
        assert_eq!(nodes_of(&paths.top).len(), 3);
    }

    #[test]
    fn what_becomes_much_is_spelled_out_and_what_becomes_little_again_is_not() {
        let mut paths = Paths::default();
        let deep = name("a/b/c/d");
        let mut claim = |number: usize, begins: bool| {
            let lease = LeaseId(number as u64);
            match begins {
                true => paths.hold(&deep, lease, Mode::Shared, Scope::Name),
                false => paths.free(&deep, lease, Mode::Shared, Scope::Name),
            }
            nodes_of(&paths.top).len()
        };
        let begun: Vec<usize> = (1..=LITTLE + 2).map(|number| claim(number, true)).collect();
        let ended: Vec<usize> = (1..=LITTLE + 2).map(|number| claim(number, false)).collect();
        assert_eq!(begun, [1, 1, 1, 1, 1, 1, 1, 1, 3, 3]);
        assert_eq!(ended, [3, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    }
}
