//! The chain from a manifest to the container that gets a device, and where it ends (rule 138). Conditions, by [`link_of`], and
//! `akri why` read it from here.

use std::collections::BTreeMap;
use std::fmt;

use crate::instance::Online;
use crate::left_out::FILTERED;
use crate::summary::{DeviceCounts, HARMLESS, INCOMPLETE, NOTHING_FOUND, NodeProblem};

/// A link of the chain, in the order in which each needs those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// The Configuration's object.
    Manifest,
    /// An agent that looks at it.
    Agent,
    /// The discovery handler that it names.
    Handler,
    /// Its `discoveryDetails`.
    Details,
    /// The values of its `discoveryProperties`.
    Properties,
    /// The round that asks the handler.
    Round,
    /// The devices that the round lists: filters, grants, and what could not be looked at.
    Devices,
    /// The Instance of the device.
    Instance,
    /// The kubelet that is offered the resource.
    Kubelet,
    /// The slots of the Instance.
    Slots,
    /// The pod that requests the resource.
    Pod,
}

impl Link {
    /// All links in their order, with their names in sentences.
    const ALL: [(Self, &str); 11] = [
        (Self::Manifest, "manifest"),
        (Self::Agent, "agent"),
        (Self::Handler, "handler"),
        (Self::Details, "details"),
        (Self::Properties, "properties"),
        (Self::Round, "round"),
        (Self::Devices, "devices"),
        (Self::Instance, "Instance"),
        (Self::Kubelet, "kubelet"),
        (Self::Slots, "slots"),
        (Self::Pod, "pod"),
    ];

    /// Returns its name in sentences.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(link, _)| *link == self).map_or("", |(_, name)| name)
    }
}

/// The link of each reason that nodes and conditions have, and what to do beside what the message says.
const REASONS: [(&str, Link, &str); 21] = [
    ("InvalidConfiguration", Link::Manifest, "correct the field that is named"),
    ("NoAgent", Link::Agent, "start the agent; in a cluster look at its DaemonSet and its pods"),
    ("NodeMissing", Link::Agent, "register the node again, or stop its agent"),
    ("Pending", Link::Agent, "wait: the first round has not ended; of the agent its /readyz says what it waits for"),
    ("NoHandler", Link::Handler, "compare discoveryHandler.name with the handlers above ('akri get handlers')"),
    ("Quarantined", Link::Handler, "mend the component, or raise the limit that is named in its DiscoveryHandler"),
    ("InvalidDetails", Link::Details, "correct the field of discoveryDetails that is named"),
    ("PropertiesUnresolved", Link::Properties, "create what is missing, and let the agent read it"),
    ("NothingReported", Link::Round, "wait, or look at the log of the remote handler"),
    ("NotGranted", Link::Round, "add the grant that is named, if the handler is to have it"),
    ("Unavailable", Link::Round, "look at what does not answer; the round is tried again"),
    ("Trapped", Link::Round, "mend the component; its output is in the agent's log"),
    ("DeadlineExceeded", Link::Round, "raise the limit that is named, or ask for less"),
    ("LimitExceeded", Link::Round, "raise the limit that is named, or ask for less"),
    ("InvalidResult", Link::Round, "mend the component"),
    (NOTHING_FOUND, Link::Devices, "do what the message says of the device"),
    (INCOMPLETE, Link::Devices, "do what the message says of the device"),
    (FILTERED, Link::Devices, "change the filter or the rule, if the device is wanted"),
    ("ResourceNameTaken", Link::Instance, "rename one of the two"),
    ("NotPublished", Link::Instance, "do what the message says; it is tried again"),
    ("SlotUncertain", Link::Slots, "delete the pod if it has ended"),
];

/// Returns the link that a reason belongs to; that of rounds for one that is not known.
pub fn link_of(reason: &str) -> Link {
    entry(reason).0
}

fn entry(reason: &str) -> (Link, &'static str) {
    let known = REASONS.iter().find(|(known, ..)| *known == reason);
    known.map_or((Link::Round, "see the agent's log"), |(_, link, remedy)| (*link, *remedy))
}

/// The facts about the way of a device.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The name that was asked for.
    pub subject: String,
    /// The Configuration, and its file if it has one; none if no object is about the subject.
    pub configuration: Option<String>,
    /// The error of the manifest, if it has one.
    pub manifest: Option<String>,
    /// The discovery handler, with its object.
    pub handler: String,
    /// The problem of each node that has one; a node without a name is the only one.
    pub nodes: BTreeMap<String, NodeProblem>,
    /// The Instances of the Configuration.
    pub devices: DeviceCounts,
    /// The Instance that was asked for.
    pub instance: Option<InstanceFacts>,
    /// The reason why the kubelet offers the resource to no pod, if it is the kubelet's own fault.
    pub kubelet: Option<String>,
    /// The reason why the pod that was asked for does not run.
    pub pod: Option<String>,
}

/// The facts about an Instance.
#[derive(Debug, Clone, Default)]
pub struct InstanceFacts {
    /// Its resource.
    pub resource: String,
    /// The availability of the device.
    pub online: Online,
    /// The message about that.
    pub message: String,
    /// The number of its slots.
    pub capacity: usize,
    /// The users of the slots in use.
    pub users: Vec<String>,
}

/// The end of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The link that does not hold.
    pub link: Link,
    /// The reason.
    pub why: String,
    /// The remedy.
    pub remedy: String,
}

impl End {
    fn new(link: Link, why: impl Into<String>, remedy: &str) -> Option<Self> {
        Some(Self { link, why: why.into(), remedy: remedy.to_owned() })
    }
}

/// Returns where the chain ends; `None` if all of it holds.
pub fn end(facts: &Facts) -> Option<End> {
    if let Some(why) = &facts.manifest {
        return End::new(Link::Manifest, why, "correct the file; its last valid version stays in force");
    }
    if facts.configuration.is_none() && facts.instance.is_none() {
        let why = "no Configuration or Instance is about it";
        return End::new(Link::Manifest, why, "write a Configuration for it, or see 'akri discover FILE --explain'");
    }
    // Warnings and filters say why a device has no Instance, and nothing about one that has.
    let is_about = |problem: &&NodeProblem| facts.instance.is_none() || !HARMLESS.contains(&&*problem.reason);
    let problem = facts.nodes.iter().filter(|(_, problem)| is_about(problem)).min_by_key(|(_, of)| link_of(&of.reason));
    let of_nodes = problem.and_then(|(node, NodeProblem { reason, message, .. })| {
        let (link, remedy) = entry(reason);
        let node = if node.is_empty() { String::new() } else { format!("{node}: ") };
        End::new(link, format!("{reason}: {node}{message}"), remedy)
    });
    let device = match &facts.instance {
        Some(of) => instance(of),
        None if of_nodes.is_none() && facts.devices.instances == 0 => {
            let remedy = "plug it in, or see what 'akri discover FILE --explain DEVICE' says";
            End::new(Link::Devices, "the last round listed no device at all", remedy)
        }
        None => None,
    };
    let kubelet = || {
        let why = facts.kubelet.as_ref()?;
        End::new(Link::Kubelet, why, "start the kubelet; containers of CDI need none")
    };
    let slots = || {
        let InstanceFacts { resource, users, capacity, .. } = facts.instance.as_ref()?;
        let why = format!("all {capacity} slots of {resource} are in use: {}", users.join(", "));
        let remedy = "end one of these, raise spec.capacity, or request the Configuration's resource";
        if users.len() < *capacity { None } else { End::new(Link::Slots, why, remedy) }
    };
    let pod = || End::new(Link::Pod, facts.pod.as_ref()?, "do what the message says");
    of_nodes.into_iter().chain(device).chain(kubelet()).chain(slots()).chain(pod()).min_by_key(|end| end.link)
}

fn instance(InstanceFacts { resource, online, message, .. }: &InstanceFacts) -> Option<End> {
    let remedy = match online {
        Online::True => return None,
        Online::False => "see that the device is on and in reach of the node",
        Online::Unknown => "start its discovery handler",
    };
    End::new(Link::Instance, format!("{resource} is offline: {message}"), remedy)
}

/// The chain in words: what was asked for, the links that hold, the one that does not, and what to do.
impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = end(self);
        let holds = |(link, _): &&(Link, &str)| end.as_ref().is_none_or(|end| *link < end.link);
        let shown = |(link, name): &(Link, &str)| match (link, &self.configuration, &self.instance) {
            (Link::Manifest, Some(configuration), _) => format!("{name} ({configuration})"),
            (Link::Handler, ..) => format!("{name} ({})", self.handler),
            (Link::Instance, _, Some(instance)) => format!("{name} ({})", instance.resource),
            (Link::Instance, _, None) => format!("{name} ({})", self.devices),
            _ => (*name).to_owned(),
        };
        let is_asked = |(link, _): &&(Link, &str)| self.instance.is_some() || *link <= Link::Kubelet;
        let holding: Vec<String> = Link::ALL.iter().filter(holds).filter(is_asked).map(shown).collect();
        writeln!(f, "{}", self.subject)?;
        if !holding.is_empty() {
            writeln!(f, "holds   {}", holding.join(", "))?;
        }
        match end {
            Some(End { link, why, remedy }) => writeln!(f, "ends    {}: {why}\nto do   {remedy}", link.name()),
            None => writeln!(f, "to do   nothing: pods get it by its resource"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::HANDLER_GONE;

    fn facts() -> Facts {
        Facts {
            subject: "cam".to_owned(),
            configuration: Some("default/cam".to_owned()),
            handler: "udev".to_owned(),
            devices: DeviceCounts { instances: 1, online: 1 },
            ..Facts::default()
        }
    }

    fn instance(users: usize, online: Online) -> Option<InstanceFacts> {
        let users = vec!["pod a/b".to_owned(); users];
        Some(InstanceFacts {
            resource: "akri.sh/cam-1".to_owned(),
            capacity: 2,
            users,
            online,
            ..InstanceFacts::default()
        })
    }

    #[test] // rule 138
    fn each_link_has_its_name_in_order() {
        for (place, (link, _)) in Link::ALL.into_iter().enumerate() {
            assert_eq!(link as usize, place, "{link:?}");
        }
    }

    fn with(reason: &str) -> BTreeMap<String, NodeProblem> {
        [("a".to_owned(), NodeProblem::new(reason, "why"))].into()
    }

    #[test] // rule 138
    fn chain_ends_at_the_first_link_that_does_not_hold() {
        let link = |facts: Facts| end(&facts).map(|end| end.link);
        let online = || instance(0, Online::True);
        let none = || Facts { devices: DeviceCounts::default(), ..facts() };
        for (facts, expected) in [
            (facts(), None),
            (Facts { instance: online(), ..facts() }, None),
            (Facts { configuration: None, ..facts() }, Some(Link::Manifest)),
            (Facts { manifest: Some("f.yaml:3: kind".to_owned()), ..facts() }, Some(Link::Manifest)),
            (Facts { nodes: with("NoHandler"), instance: online(), ..facts() }, Some(Link::Handler)),
            (Facts { nodes: with("PropertiesUnresolved"), ..facts() }, Some(Link::Properties)),
            (Facts { nodes: with("Trapped"), ..facts() }, Some(Link::Round)),
            (Facts { nodes: with(FILTERED), ..facts() }, Some(Link::Devices)),
            (Facts { nodes: with(INCOMPLETE), instance: online(), ..facts() }, None),
            (Facts { nodes: with("ResourceNameTaken"), ..none() }, Some(Link::Instance)),
            (none(), Some(Link::Devices)),
            (Facts { instance: instance(2, Online::False), ..facts() }, Some(Link::Instance)),
            (
                Facts { kubelet: Some("away".to_owned()), instance: instance(2, Online::True), ..facts() },
                Some(Link::Kubelet),
            ),
            (Facts { instance: instance(2, Online::True), pod: Some("p".to_owned()), ..facts() }, Some(Link::Slots)),
            (Facts { instance: online(), pod: Some("p".to_owned()), ..facts() }, Some(Link::Pod)),
        ] {
            assert_eq!(link(facts.clone()), expected, "{facts:?}");
        }
    }

    #[test] // rule 138
    fn chain_has_four_lines() {
        let text = Facts { nodes: with("PropertiesUnresolved"), ..facts() }.to_string();
        let expected = "cam\n\
                        holds   manifest (default/cam), agent, handler (udev), details\n\
                        ends    properties: PropertiesUnresolved: a: why\n\
                        to do   create what is missing, and let the agent read it\n";
        assert_eq!(text, expected);
        let text = Facts { instance: instance(1, Online::True), ..facts() }.to_string();
        assert!(
            text.ends_with(
                "Instance (akri.sh/cam-1), kubelet, slots, pod\nto do   nothing: pods get it by its resource\n"
            ),
            "{text}"
        );
    }

    #[test] // rule 138
    fn each_reason_of_a_round_has_its_link() {
        assert_eq!(link_of("Quarantined"), Link::Handler);
        assert_eq!(link_of(HANDLER_GONE), Link::Round, "it is of Instances");
        let reasons: std::collections::BTreeSet<&str> = REASONS.iter().map(|(reason, ..)| *reason).collect();
        assert_eq!(reasons.len(), REASONS.len());
    }
}
