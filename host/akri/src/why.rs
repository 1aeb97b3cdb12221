//! `akri why`: follows the chain from a manifest to a container, and says where it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use akri_api::condition::{Condition, find};
use akri_api::{Configuration, Instance, instance_to_model};
use akri_cli::output::{plain, print_message, print_text};
use akri_model::chain::{Facts, InstanceFacts, end};
use akri_model::left_out::{FILTERED, LEFT_OUT};
use akri_model::names::{RESOURCE_PREFIX, resource_name};
use akri_model::summary::{DeviceCounts, NodeProblem};
use anyhow::ensure;
use clap::Args;
use kube::ResourceExt as _;

use crate::get::args::SourceArgs;
use crate::observed::{Handler, Observed, Pod};

/// Chains that are printed of one name.
const CHAINS: usize = 2;

/// Bytes of a name.
const LONGEST_NAME: usize = 1024;

/// Bytes of a sentence.
const SENTENCE: usize = 1024;

/// Flags of `akri why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// A device (its node, address, URL, name or id), a resource, an Instance, a Configuration, a discovery handler, a node or a pod;
    /// NAMESPACE/NAME is one in a namespace.
    name: String,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Prints the chains. Fails if one of them ends.
pub(crate) async fn run(args: &WhyArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        !args.name.trim().is_empty() && args.name.len() <= LONGEST_NAME && !args.name.contains(char::is_control),
        "name a device, a resource, an Instance, a Configuration, a handler, a node or a pod, in up to {LONGEST_NAME} bytes"
    );
    let observed = Observed::read(&args.source).await?;
    observed.not_listed().iter().for_each(|missing| print_message(format!("warning: {}", plain(missing))));
    let name = args.name.strip_prefix(RESOURCE_PREFIX).unwrap_or(&args.name);
    let mut chains = observed.chains(name);
    chains.sort_by_key(|facts| end(facts).map_or((true, None), |end| (false, Some(end.link)))); // stable
    let others = chains.split_off(CHAINS.min(chains.len()));
    let texts = chains.iter().map(|facts| facts.to_string().lines().map(|line| plain(line) + "\n").collect::<String>());
    let names: BTreeSet<&str> = others.iter().map(name_of).collect();
    let names = akri_model::text::cut_with_dots(&Vec::from_iter(names).join("; "), SENTENCE);
    let more = (!others.is_empty()).then(|| plain(&format!("and {} more, of {names}", others.len())) + "\n");
    print_text(&texts.chain(more).collect::<String>())?;
    Ok(if chains.iter().any(|facts| end(facts).is_some()) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the name of the object that a chain is about.
fn name_of(facts: &Facts) -> &str {
    let of_instance = facts.instance.as_ref().map(|instance| &instance.resource);
    of_instance.or(facts.configuration.as_ref()).unwrap_or(&facts.subject)
}

impl Observed {
    /// Returns what is known of a name: by the first kind of objects that have it.
    pub(crate) fn chains(&self, name: &str) -> Vec<Facts> {
        let found = self.of_pods(name);
        let found = or_else(found, || self.of_instances(name, is_named));
        let found = or_else(found, || self.of_configurations(name, is_named));
        let found = or_else(found, || self.of_nodes(name));
        let found = or_else(found, || self.of_handlers(name));
        let found = or_else(found, || self.of_device(name));
        let found = or_else(found, || self.of_idle(name));
        or_else(found, || vec![Facts { subject: name.to_owned(), ..Facts::default() }])
    }

    fn of_pods(&self, name: &str) -> Vec<Facts> {
        let is_it = |pod: &&Pod| pod.name == name || pod.name.rsplit_once('/').is_some_and(|(_, own)| own == name);
        self.pods.iter().filter(is_it).flat_map(|pod| self.of_pod(pod)).collect()
    }

    /// Returns a chain for each resource that a pod requests.
    pub(crate) fn of_pod(&self, pod: &Pod) -> Vec<Facts> {
        let agent = pod.node.as_ref().filter(|_| pod.since.is_none()).and_then(|node| self.agents.get(node));
        let no_agent = agent.map(|why| no_agent(&format!("{why}, where it has to run")));
        let chains = pod.requests.iter().flat_map(|request| {
            let subject = format!("pod {}, which requests {}", pod.name, resource_name(request));
            let with_pod = move |facts| Facts { subject: subject.clone(), pod: pod.waits.clone(), ..facts };
            self.chains_of_resource(request).into_iter().map(with_pod)
        });
        let mut chains: Vec<Facts> = chains.collect();
        chains.iter_mut().for_each(|facts| facts.nodes.extend(no_agent.clone()));
        chains
    }

    /// Returns the chains of a requested resource.
    fn chains_of_resource(&self, name: &str) -> Vec<Facts> {
        let found = or_else(self.of_instances(name, is_named), || self.of_configurations(name, is_named));
        or_else(found, || vec![Facts { subject: name.to_owned(), ..Facts::default() }])
    }

    fn of_instances(&self, name: &str, is_it: impl Fn(&Instance, &str) -> bool) -> Vec<Facts> {
        let found = self.instances.iter().filter(|instance| is_it(instance, name));
        found.map(|instance| Facts { subject: name.to_owned(), ..self.of_instance(instance) }).collect()
    }

    pub(crate) fn of_instance(&self, instance: &Instance) -> Facts {
        let found = self.configurations.iter().find(|one| is_of(instance, one)).map(|one| self.of_configuration(one));
        let facts = found.unwrap_or_else(|| Facts { manifest: self.kept(instance), ..Facts::default() });
        let nodes = &instance.spec.nodes;
        let is_away = nodes.iter().all(|node| self.kubelets.contains_key(node));
        let of_nodes = nodes.first().filter(|_| is_away).and_then(|node| self.kubelets.get(node));
        let instance = self.instance(instance);
        Facts {
            subject: instance.resource.clone(),
            kubelet: self.kubelets.get("").or(of_nodes).cloned(),
            instance: Some(instance),
            ..facts
        }
    }

    /// Returns why an Instance without a Configuration is there: nothing is deleted while manifests have errors.
    fn kept(&self, instance: &Instance) -> Option<String> {
        let (configuration, error) = (&instance.spec.configuration_name, self.manifests.first()?);
        Some(format!(
            "Configuration '{configuration}' is in no valid manifest, and nothing is deleted while there is an error: {error}"
        ))
    }

    fn instance(&self, instance: &Instance) -> InstanceFacts {
        let status = instance.status.clone().unwrap_or_default();
        let online = find(&status.conditions, "Online");
        let of_nodes = status.nodes.iter().map(|(node, problem)| format!("{node}: {}", problem.message));
        let messages = online.map(|online| online.message.clone()).into_iter().chain(of_nodes);
        let used = self.slots(instance).filter(|slot| !slot.usage.is_free());
        InstanceFacts {
            resource: resource_name(&instance.name_any()),
            online: instance_to_model(instance).online,
            message: messages.collect::<Vec<_>>().join("; "),
            capacity: usize::try_from(instance.spec.capacity).unwrap_or_default(),
            users: used.map(|slot| slot.user()).collect(),
        }
    }

    fn of_configurations(&self, name: &str, is_it: impl Fn(&Configuration, &str) -> bool) -> Vec<Facts> {
        let chain = |one: &Configuration| Facts { subject: name.to_owned(), ..self.of_configuration_alone(one) };
        let found: Vec<Facts> = self.configurations.iter().filter(|one| is_it(one, name)).map(chain).collect();
        // An Instance says more, where there is one.
        let is_its =
            |instance: &&Instance| self.configurations.iter().any(|one| is_it(one, name) && is_of(instance, one));
        let instances = self.instances.iter().filter(is_its);
        let of_instances =
            instances.flat_map(|instance| self.of_instances(&instance.name_any(), |one, _| one == instance));
        let ended = of_instances.filter(|facts| end(facts).is_some());
        let all_hold = found.iter().all(|facts| end(facts).is_none());
        if all_hold { ended.chain(found.iter().cloned()).collect() } else { found }
    }

    /// Returns the chain of a Configuration that is asked for by itself: what a filter left out is no fault where it lets others
    /// through.
    pub(crate) fn of_configuration_alone(&self, configuration: &Configuration) -> Facts {
        let mut facts = self.of_configuration(configuration);
        facts.nodes.retain(|_, problem| problem.reason != FILTERED || facts.devices.instances == 0);
        facts
    }

    fn of_configuration(&self, configuration: &Configuration) -> Facts {
        let key = format!("{}/{}", configuration.namespace().unwrap_or_default(), configuration.name_any());
        let status = configuration.status.clone().unwrap_or_default();
        let mut nodes = problems(&status.conditions);
        if let Some(why) = self.agents.get("") {
            nodes.extend([no_agent(why)]);
        }
        let instances = usize::try_from(status.instances).unwrap_or_default();
        let file = self.files.get(&key);
        Facts {
            subject: key.clone(),
            configuration: Some(file.map_or_else(|| key.clone(), |file| format!("{key}, {file}"))),
            manifest: file.and_then(|file| self.manifests.iter().find(|error| error.contains(file))).cloned(),
            handler: self.handler(&configuration.spec.discovery_handler.name),
            nodes,
            devices: DeviceCounts { instances, online: instances },
            kubelet: self.kubelets.get("").cloned(),
            ..Facts::default()
        }
    }

    fn handler(&self, name: &str) -> String {
        let is_it = |handler: &&Handler| handler.status.handler.as_deref() == Some(name);
        match self.handlers.iter().find(is_it).map(|handler| &handler.object) {
            Some(Some(object)) => format!("DiscoveryHandler '{object}'"),
            Some(None) => format!("remote handler '{name}'"),
            None => format!("'{name}'"),
        }
    }

    /// Returns the chains of the Instances that a node has; of one without an agent, the reason.
    fn of_nodes(&self, name: &str) -> Vec<Facts> {
        if !self.nodes.contains(name) {
            return Vec::new();
        }
        let subject = format!("node {name}");
        if let Some(why) = self.agents.get(name) {
            return vec![problem_of(&subject, no_agent(why))];
        }
        let found = self.of_instances(name, |instance, name| instance.spec.nodes.iter().any(|node| node == name));
        or_else(found, || vec![Facts { subject: format!("{subject}, which has no device"), ..Facts::default() }])
    }

    /// Returns the chains of the Configurations of a handler; of one that is refused, the reason.
    fn of_handlers(&self, name: &str) -> Vec<Facts> {
        let is_it = |handler: &&Handler| [&handler.object, &handler.status.handler].contains(&&Some(name.to_owned()));
        let found: Vec<&Handler> = self.handlers.iter().filter(is_it).collect();
        let refused: Vec<Facts> = found.iter().filter_map(|handler| of_refused(handler)).collect();
        let used = |own: &str| self.of_configurations(own, |one, own| one.spec.discovery_handler.name == own);
        let users =
            || found.iter().flat_map(|handler| used(handler.status.handler.as_deref().unwrap_or(name))).collect();
        let known = or_else(or_else(refused, users), || used(name));
        let unused = || Facts { subject: format!("handler {name}, which is accepted"), ..Facts::default() };
        or_else(known, || found.iter().map(|_| unused()).collect())
    }

    /// Returns the chains of Instances whose properties have the name, and of Configurations that say something else about it.
    fn of_device(&self, name: &str) -> Vec<Facts> {
        let has_property =
            |instance: &Instance, name: &str| instance.spec.broker_properties.values().any(|value| is_in(value, name));
        let mut found = self.of_instances(name, has_property);
        let known: Vec<Option<String>> = found.iter().map(|facts| facts.configuration.clone()).collect();
        // To be left out by one Configuration is no fault of a device that another one finds, and messages have words of their own.
        let is_word = name.chars().all(char::is_alphabetic);
        let is_other = |facts: &Facts| !is_word && !known.contains(&facts.configuration) && !is_left_out(facts);
        found.extend(self.of_messages(name).into_iter().filter(|facts| known.is_empty() || is_other(facts)));
        found
    }

    /// Returns the chains of invalid manifests, and of Configurations whose conditions are about the name.
    fn of_messages(&self, name: &str) -> Vec<Facts> {
        let subject = || name.to_owned();
        let errors = self.manifests.iter().filter(|error| is_in(error, name));
        let errors =
            errors.map(|error| Facts { subject: subject(), manifest: Some(error.clone()), ..Facts::default() });
        let narrowed = |one: &Configuration| {
            let status = one.status.as_ref()?;
            status.conditions.iter().find(|condition| is_in(&condition.message, name))?;
            let mut facts = self.of_configuration(one);
            facts.nodes.values_mut().for_each(|problem| problem.message = about(&problem.message, name));
            Some(Facts { subject: subject(), ..facts })
        };
        errors.chain(self.configurations.iter().filter_map(narrowed)).collect()
    }

    /// Returns the chains of Configurations that have found nothing.
    fn of_idle(&self, name: &str) -> Vec<Facts> {
        let all = self.configurations.iter().map(|one| self.of_configuration(one));
        let idle = all.filter(|facts| facts.devices.instances == 0);
        idle.map(|facts| Facts { subject: format!("{name}: no object is about it, but {}", facts.subject), ..facts })
            .collect()
    }
}

/// Returns the chain of a handler whose object is refused.
pub(crate) fn of_refused(handler: &Handler) -> Option<Facts> {
    let why = handler.refusal()?;
    let name = handler.object.as_ref().or(handler.status.handler.as_ref())?;
    let problem = (String::new(), NodeProblem::new("NoHandler", &why));
    Some(problem_of(&format!("DiscoveryHandler '{name}'"), problem))
}

/// Returns the chain of what all Configurations need.
fn problem_of(subject: &str, problem: (String, NodeProblem)) -> Facts {
    let subject = subject.to_owned();
    Facts { configuration: Some(subject.clone()), subject, nodes: [problem].into(), ..Facts::default() }
}

/// Returns the problem of a node without an agent, with the node in its message.
fn no_agent(why: &str) -> (String, NodeProblem) {
    (String::new(), NodeProblem::new("NoAgent", why))
}

fn is_left_out(facts: &Facts) -> bool {
    facts.manifest.is_none() && facts.nodes.values().all(|problem| problem.message.contains(LEFT_OUT))
}

fn or_else(found: Vec<Facts>, others: impl FnOnce() -> Vec<Facts>) -> Vec<Facts> {
    if found.is_empty() { others() } else { found }
}

/// Returns the problem that the conditions of a Configuration tell, with the nodes in its message.
fn problems(conditions: &[Condition]) -> BTreeMap<String, NodeProblem> {
    let is_bad = |condition: &&Condition| condition.status != "True";
    let chosen = ["Ready", "DiscoveryComplete"].iter().filter_map(|kind| find(conditions, kind)).find(is_bad);
    let problem = chosen.map(|condition| (condition.reason.clone(), condition.message.clone())).or_else(|| {
        let message = &find(conditions, "Ready")?.message;
        let at = message.find(LEFT_OUT)?;
        Some((FILTERED.to_owned(), message.get(at..)?.to_owned()))
    });
    let problem = problem.map(|(reason, message)| (String::new(), NodeProblem { reason, message, since: None }));
    problem.into_iter().collect()
}

/// Returns the sentences of a message that are about a name, with their remedies.
fn about(message: &str, name: &str) -> String {
    let parts: Vec<&str> = message.split("; ").collect();
    // Another origin begins with a name and a colon.
    let is_remedy = |part: &&str| !part.contains(": ") || part.ends_with("would allow it");
    let mut chosen = String::new();
    for (index, part) in parts.iter().enumerate().filter(|(_, part)| is_in(part, name)) {
        let separator = if chosen.is_empty() { "" } else { "; " };
        chosen.push_str(&format!("{separator}{part}"));
        chosen.extend(parts.get(index + 1).filter(|next| is_remedy(next)).map(|next| format!("; {next}")));
    }
    if chosen.is_empty() { message.to_owned() } else { akri_model::text::cut_with_dots(&chosen, SENTENCE) }
}

fn is_of(instance: &Instance, one: &Configuration) -> bool {
    one.namespace() == instance.namespace() && one.name_any() == instance.spec.configuration_name
}

fn is_named(object: &impl kube::ResourceExt, name: &str) -> bool {
    object.name_any() == name || format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any()) == name
}

/// Returns whether a text has a name, not as a part of a longer one.
pub(crate) fn is_in(text: &str, name: &str) -> bool {
    let goes_on = |c: char| c.is_ascii_alphanumeric();
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (text.get(..at).unwrap_or_default(), text.get(at + name.len()..).unwrap_or_default());
        !name.is_empty() && !before.ends_with(goes_on) && !after.starts_with(goes_on)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test] // rule 138
    fn nodes_and_handlers_are_known_without_problems() {
        let instance = json!({
            "metadata": {"name": "cam-1", "namespace": "default"},
            "spec": {"configurationName": "cam", "nodes": ["a"], "capacity": 1, "cdiName": "", "shared": true},
        });
        let handler = akri_api::DiscoveryHandlerStatus { handler: Some("udev".to_owned()), ..Default::default() };
        let observed = Observed {
            instances: vec![serde_json::from_value(instance).unwrap()],
            nodes: ["a", "b", "c"].map(str::to_owned).into(),
            agents: [("c".to_owned(), "no agent runs".to_owned())].into(),
            handlers: vec![Handler { object: Some("own-udev".to_owned()), status: handler }],
            ..Observed::default()
        };
        for (name, subject) in [
            ("a", "a"),
            ("b", "node b, which has no device"),
            ("c", "node c"),
            ("udev", "handler udev, which is accepted"),
            ("own-udev", "handler own-udev, which is accepted"),
            ("d", "d"),
        ] {
            let chains = observed.chains(name);
            assert_eq!(chains.iter().map(|facts| &*facts.subject).collect::<Vec<_>>(), [subject], "{name}");
            assert_eq!(chains[0].instance.is_some(), name == "a", "{name}");
        }
    }
}
