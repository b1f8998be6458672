//! What a call needs, and the proof that its caller has it.

use lowkey_core::{Access, Caller, Denied, On, Verb};

use crate::call::Place;

/// What a client must be, or have, to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<'a> {
    /// Nothing.
    Anybody,
    /// To be a principal. What it may see or touch depends on what is its own, which the leader knows.
    Somebody,
    /// A grant of this verb there.
    Granted(Verb, On<'a>),
    /// To be a node of the cluster. No client is asked for this: no client can ask it.
    Node,
}

impl Rule<'_> {
    pub(super) fn judge(self, table: &Access, caller: &Caller) -> Result<(), Denied> {
        match self {
            Self::Anybody => Ok(()),
            Self::Somebody => table.stands(caller).map(drop),
            Self::Granted(verb, on) => table.judge(caller, verb, on),
            Self::Node if *caller == Caller::Node => Ok(()),
            Self::Node => Err(Denied::Unproven),
        }
    }
}

/// Something that is asked for, and what it needs. The calls of the table are: each says `needs` there.
pub trait Ruled {
    /// It needs that also while access is not required: otherwise anybody could make himself the first admin.
    const ALSO_WHILE_OPEN: bool = false;

    /// What its caller needs.
    fn rule(&self) -> Rule<'_>;

    /// For whom its caller speaks, if it names an owner. The leader judges that; here it is only rehearsed.
    fn owner(&self) -> Option<&str> {
        None
    }
}

pub(crate) fn rule_of<T: Ruled>(wanted: &T) -> Rule<'_> {
    wanted.rule()
}

/// A verb at the place that a call is about. What is about no name in particular is about everything, but for
/// making leases: they are granted with any path.
pub(crate) fn granted(verb: Verb, place: Place<'_>) -> Rule<'_> {
    Rule::Granted(
        verb,
        match place {
            Place::Name(name) => On::Name(name),
            Place::Prefix(prefix) => On::Prefix(prefix),
            Place::Lease(_) => On::Anywhere,
            Place::Root if verb == Verb::Acquire => On::Anywhere,
            Place::Root => On::Everything,
        },
    )
}

/// Something that its caller may have. Only [`Guard`](super::Guard) makes one.
#[derive(Debug)]
pub struct Permitted<T> {
    wanted: T,
    caller: Caller,
}

impl<T> Permitted<T> {
    pub(super) fn new(wanted: T, caller: Caller) -> Self {
        Self { wanted, caller }
    }

    /// What is asked for.
    pub fn wanted(&self) -> &T {
        &self.wanted
    }

    /// Who asks.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// What is asked for, without who asks.
    pub fn into_wanted(self) -> T {
        self.wanted
    }

    pub(crate) fn into_parts(self) -> (T, Caller) {
        (self.wanted, self.caller)
    }

    /// The same caller asks for what this stands for: another call, by which the node carries it out. The leader
    /// judges that one.
    pub(crate) fn by_way_of<U>(self, other: impl FnOnce(T) -> U) -> Permitted<U> {
        Permitted { wanted: other(self.wanted), caller: self.caller }
    }

    /// The same caller asks for a part of it, or for what it needs on the way.
    pub(crate) fn as_part<U>(&self, part: U) -> Permitted<U> {
        Permitted { wanted: part, caller: self.caller.clone() }
    }
}

/// Reading the node's metrics.
pub(crate) struct MetricsRead;

impl Ruled for MetricsRead {
    fn rule(&self) -> Rule<'_> {
        Rule::Somebody
    }
}

impl Ruled for lowkey_api::v1::WatchRequest {
    fn rule(&self) -> Rule<'_> {
        // With both, it is refused as it stands.
        match self.name.as_str() {
            "" => granted(Verb::Watch, Place::Prefix(&self.prefix)),
            name => granted(Verb::Watch, Place::Name(name)),
        }
    }
}

impl Ruled for lowkey_api::v1::ObserveRequest {
    fn rule(&self) -> Rule<'_> {
        granted(Verb::Watch, Place::Name(&self.election))
    }
}
