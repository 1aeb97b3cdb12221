//! The explored space: bounds, faults, and rules that can be switched off.

use std::time::Duration;

/// The time that one `Waited` action lets pass on a node: nothing in the machine waits for longer.
pub(crate) const WAIT: Duration = Duration::from_secs(300);

/// The time for which a slot stays taken after the last sight of its container, if cgroups can't be read (rule 101).
pub(crate) const RELEASE_DELAY: Duration = Duration::from_secs(30);

/// The size of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) nodes: usize,
    pub(crate) instances: usize,
    /// Slots of each Instance.
    pub(crate) slots: u32,
    /// Pods that each node admits.
    pub(crate) pods: u8,
    /// Faults that happen, in all.
    pub(crate) faults: u8,
    /// Pods ask for slots of Instances, or also for virtual devices of the Configuration.
    pub(crate) virtual_devices: bool,
    /// Pods use devices in init containers, too, which PodResources does not list.
    pub(crate) init: bool,
    pub(crate) mutation: Option<Mutation>,
}

/// A rule that is switched off by altering what the machine gets. The exploration has to find each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// It is not noticed that the kubelet has started again.
    Rule19,
    /// The controller cleans as soon as a Node object is missing.
    Rule100,
    /// No cgroups are read, and there is no delay.
    Rule101,
    /// Containers without devices are not listed.
    Rule102,
    /// The usage by others is neither in the journal nor in an Instance that is made again.
    Rule103,
    /// A checkpoint is taken for renewable although no plugin is open.
    Rule104,
    /// A failed poll restarts the settling time.
    Rule105,
    /// It is not noticed that the cluster went back to an earlier state.
    Rule106,
}

/// Everything that may go wrong. A fault uses up one of [`Bounds::faults`]; what follows from it does not.
///
/// Indices are of nodes, unless they are named otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    // Circumstances, which hold from the beginning.
    /// Every second call of PodResources fails (rule 105).
    FailPolls(usize),
    /// No plugin of the agent is open: the kubelet does not write its checkpoint again (rule 104).
    ClosePlugins(usize),
    /// The host's cgroups can't be read (rule 101).
    HideCgroups(usize),
    /// The kubelet's checkpoint can't be read.
    HideCheckpoint(usize),
    /// The kubelet lists pods that have ended for as long as their objects exist, as those before 1.34 do.
    ListEnded(usize),
    // The agent.
    /// `kill -9`.
    Crash(usize),
    /// An Allocate is not confirmed in time.
    Expire(usize),
    /// The kubelet does not receive the answer to an Allocate.
    HangUp(usize),
    /// Records are not on disk at once, and a crash loses them.
    SlowDisk(usize),
    /// The next record can't be written.
    FailRecord(usize),
    // The network. The index is that of a message.
    /// A request is lost.
    LoseRequest(usize),
    /// A request arrives, and its answer is lost.
    LoseAnswer(usize),
    /// A request arrives, and its answer comes later.
    DelayAnswer(usize),
    /// The sender gives up a request, which arrives all the same, some time.
    DelayRequest(usize),
    /// A request arrives once more, some time.
    DoubleRequest(usize),
    /// The watch of a node stalls for a while.
    StallWatch(usize),
    // The API server.
    /// An Instance is deleted by hand, by index.
    DeleteInstance(usize),
    /// The Configuration is deleted and made again.
    ReplaceConfiguration,
    /// Garbage collection does nothing for a while.
    StallCollector,
    /// The capacity is raised or lowered.
    EditCapacity,
    /// The usage of a slot of an Instance is edited by hand.
    EditUsage(usize, u32, Edit),
    /// A backup is restored, while the API servers are stopped.
    Restore,
    /// The Node object is deleted.
    DeleteNode(usize),
    // The kubelet.
    /// The pod that is that one of the node's is deleted by force: it is no longer listed, and its container runs on.
    ForceDelete(usize, usize),
    /// The kubelet starts again.
    RestartKubelet(usize),
    /// The kubelet starts again, without its checkpoint.
    LoseCheckpoint(usize),
    /// A snapshot is applied later than it was taken.
    LateSnapshot(usize),
    /// A snapshot lacks the containers that have just started.
    LaggingList(usize),
}

/// A hand edit of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit {
    Free,
    /// The next node's name.
    OtherNode,
    Unreadable,
}
