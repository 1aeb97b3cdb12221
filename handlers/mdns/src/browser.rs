//! A round: from questions and responses to devices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use akri_handler::FILTERED;

use crate::PORT;
use crate::details::{Details, ServiceType};
use crate::memory::{Facts, Known};
use crate::message::{self, Data, Kind, MessageError, Question, Record};
use crate::name::Name;
use crate::text::{self, Entry};

/// Limit on the instances of a round, with those of the last one.
const MAX_INSTANCES: usize = 1_000;
/// Limit on the instances that are named as left out.
const MAX_LEFT_OUT: usize = 64;
/// Limit on the hosts of a round.
const MAX_HOSTS: usize = 2_000;
/// Limit on the addresses of a host.
const MAX_ADDRESSES: usize = 16;
/// Limit on how often hosts that no instance names make room for others.
const MAX_CLEANUPS: u32 = 16;
/// The number of questions without an answer after which there is none.
const ENOUGH_QUESTIONS: u32 = 2;

/// A device to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The name of the instance, in lower case.
    pub id: String,
    /// Names and values.
    pub properties: Vec<(String, String)>,
}

/// A note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The id of a device, or "".
    pub origin: String,
    /// A CamelCase word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// The result of a round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The selected instances.
    pub devices: Vec<Device>,
    /// The ids of instances whose state is unknown.
    pub kept: Vec<String>,
    /// The notes.
    pub notes: Vec<Note>,
    /// The instances to ask for in the next round, should they be silent.
    pub known: Known,
}

/// The records of one instance.
#[derive(Debug, Default)]
struct Instance {
    /// Set if a pointer leads to it.
    is_listed: bool,
    /// The port and the host.
    service: Option<(u16, Name)>,
    text: Option<Vec<Entry>>,
}

impl Instance {
    /// Returns whether it only takes a name, as printers without the protocol LPR do for their other services (RFC 6763, section
    /// 8).
    fn is_placeholder(&self) -> bool {
        self.service.as_ref().is_some_and(|(port, _)| *port == 0)
    }
}

/// Collects the responses of a round.
#[derive(Debug)]
pub struct Browser<'a> {
    details: &'a Details,
    /// The instances of the last round.
    known: &'a Known,
    /// The number of those that are passed over at first: with more than a round asks for, each has its round.
    start: usize,
    instances: BTreeMap<Name, Instance>,
    hosts: BTreeMap<Name, BTreeSet<IpAddr>>,
    /// The number of instances that are none of the last round's.
    others: usize,
    /// Instances of the last round that said goodbye, and whether they were asked since: anyone in the network can send a
    /// goodbye.
    withdrawn: BTreeMap<Name, bool>,
    cleanups: u32,
    /// The number of times that each question about a single instance or host was asked.
    asked: BTreeMap<Question, u32>,
    malformed: u32,
    fault: Option<MessageError>,
    /// Records beyond a limit.
    beyond_limit: u32,
    /// Instances that the filter by name leaves out.
    left_out: BTreeSet<Name>,
}

impl<'a> Browser<'a> {
    /// Begins a round. `random` selects the instance of the last round that is asked for first.
    pub fn new(details: &'a Details, known: &'a Known, random: usize) -> Self {
        Self {
            details,
            known,
            start: random % known.len().max(1),
            instances: BTreeMap::new(),
            hosts: BTreeMap::new(),
            others: 0,
            withdrawn: BTreeMap::new(),
            cleanups: 0,
            asked: BTreeMap::new(),
            malformed: 0,
            fault: None,
            beyond_limit: 0,
            left_out: BTreeSet::new(),
        }
    }

    /// Returns the messages with the questions for instances of the services.
    pub fn browsing(&self) -> Vec<Vec<Question>> {
        message::packed(self.details.browsed().into_iter().map(|name| Question { name, kind: Kind::Pointer }))
    }

    /// Returns at most `room` messages with the questions that responses so far leave open: instances of the last round that are
    /// silent or said goodbye, what is missing of the others, and addresses of another kind. Each instance has a message of
    /// its own: Avahi answers what fits into 512 bytes, and omits the rest without a sign of that.
    pub fn open(&mut self, room: usize) -> Vec<Vec<Question>> {
        let service = |name: &Name| Question { name: name.clone(), kind: Kind::Service };
        let mut messages = Vec::new();
        for (name, asked) in self.withdrawn.iter_mut().take(room) {
            *asked = true;
            messages.push(vec![service(name)]);
        }
        // Those asked often enough come last, so that others have their turn.
        let mut silent: Vec<Question> = self.silent().map(service).collect();
        silent.sort_by_key(|question| self.was_asked_enough(question));
        let missing = self.found().map(|(name, instance)| self.missing(name, instance));
        let further: BTreeSet<Question> = self.found().filter_map(|(_, of)| self.further_addresses(of)).collect();
        messages
            .extend(silent.into_iter().map(|question| vec![question]).chain(missing).chain(message::packed(further)));
        let mut seen = BTreeSet::new();
        messages.iter_mut().for_each(|questions| questions.retain(|question| seen.insert(question.clone())));
        messages.retain(|questions| !questions.is_empty());
        messages.truncate(room);
        for question in messages.iter().flatten() {
            *self.asked.entry(question.clone()).or_default() += 1;
        }
        messages
    }

    /// Returns whether something is open that is worth waiting for: not the addresses of another kind, if the host had none
    /// in the last round either, or has answered no question for them.
    pub fn is_waiting(&self) -> bool {
        let is_incomplete = |(name, instance): (&Name, &Instance)| {
            let further = self.further_addresses(instance);
            let awaits_kind = further.is_some_and(|question| !self.was_asked_enough(&question));
            !self.missing(name, instance).is_empty() || awaits_kind && !self.had_one_kind(name)
        };
        !self.withdrawn.is_empty() || self.silent().next().is_some() || self.found().any(is_incomplete)
    }

    fn had_one_kind(&self, name: &Name) -> bool {
        self.known.get(name).is_some_and(|before| before.has_one_kind)
    }

    fn was_asked_enough(&self, question: &Question) -> bool {
        self.asked.get(question).is_some_and(|times| *times >= ENOUGH_QUESTIONS)
    }

    /// Adds a datagram that came from this port. Responses come from the port of multicast DNS and no other (RFC 6762,
    /// section 6).
    pub fn add(&mut self, datagram: &[u8], port: u16) {
        if port != PORT {
            return;
        }
        match message::read(datagram) {
            Ok(records) => records.into_iter().for_each(|record| self.add_record(record)),
            Err(error) => {
                self.malformed = self.malformed.saturating_add(1);
                self.fault = Some(error);
            }
        }
    }

    fn add_record(&mut self, Record { name, is_valid, data }: Record) {
        match data {
            Data::Address(address) => self.add_address(name, address, is_valid),
            Data::Pointer(instance) => {
                if self.lists(&name, &instance) {
                    self.update(instance, is_valid, |instance| instance.is_listed = true);
                }
            }
            Data::Service { port, host } => {
                self.update(name, is_valid, |instance| instance.service = Some((port, host)));
            }
            // Only the others say goodbye.
            Data::Text(strings) if is_valid => {
                self.update(name, true, |instance| instance.text = Some(text::entries(&strings)));
            }
            Data::Text(_) => {}
        }
    }

    /// Returns whether a pointer leads from what was asked for to an instance of that service.
    fn lists(&self, browsed: &Name, instance: &Name) -> bool {
        let service = instance.split_first().map(|(_, service)| service);
        let is_it = |wanted: &ServiceType| wanted.browsed == *browsed && service.as_ref() == Some(&wanted.name);
        self.details.services.iter().any(is_it)
    }

    fn add_address(&mut self, host: Name, address: IpAddr, is_valid: bool) {
        if !is_valid {
            if let Some(addresses) = self.hosts.get_mut(&host) {
                addresses.remove(&address);
            }
            return;
        }
        if !self.hosts.contains_key(&host) && !self.has_room_for_a_host() {
            self.beyond_limit = self.beyond_limit.saturating_add(1);
            return;
        }
        let addresses = self.hosts.entry(host).or_default();
        addresses.insert(address);
        if addresses.len() > MAX_ADDRESSES {
            addresses.pop_last(); // which ones stay does not depend on their order
        }
    }

    /// Makes room by dropping hosts that no instance names, if need be.
    fn has_room_for_a_host(&mut self) -> bool {
        if self.hosts.len() >= MAX_HOSTS && self.cleanups < MAX_CLEANUPS {
            self.cleanups += 1;
            let services = self.instances.values().filter_map(|instance| instance.service.as_ref());
            let named: BTreeSet<&Name> = services.map(|(_, host)| host).collect();
            self.hosts.retain(|host, _| named.contains(host));
        }
        self.hosts.len() < MAX_HOSTS
    }

    /// Changes a selected instance, or removes it if its record is withdrawn. One of the last round is asked once more.
    fn update(&mut self, name: Name, is_valid: bool, change: impl FnOnce(&mut Instance)) {
        if self.selected(&name).is_none() {
            if is_valid && self.left_out.len() < MAX_LEFT_OUT && self.service(&name).is_some() {
                self.left_out.insert(name);
            }
            return;
        }
        let is_known = self.known.contains_key(&name);
        if !is_valid {
            let removed = self.instances.remove(&name).is_some();
            if is_known {
                self.withdrawn.insert(name, false);
            } else if removed {
                self.others -= 1;
            }
            return;
        }
        if !is_known && !self.instances.contains_key(&name) {
            if self.known.len() + self.others >= MAX_INSTANCES {
                self.beyond_limit = self.beyond_limit.saturating_add(1);
                return;
            }
            self.others += 1;
        }
        self.withdrawn.remove(&name);
        change(self.instances.entry(name).or_default());
    }

    /// Returns the service and the first label of an instance.
    fn service(&self, name: &Name) -> Option<(&'a ServiceType, String)> {
        let (label, rest) = name.split_first()?;
        Some((self.details.services.iter().find(|service| service.name == rest)?, label))
    }

    /// Returns the service and the first label of an instance that the filter by name selects.
    fn selected(&self, name: &Name) -> Option<(&'a ServiceType, String)> {
        let (service, label) = self.service(name)?;
        let filter = self.details.instances.as_ref();
        let is_selected = filter.is_none_or(|filter| filter.selects(|pattern| pattern.matches(&label)));
        is_selected.then_some((service, label))
    }

    /// Returns the instances that exist: one to which a pointer leads, or one of the last round that answers. Only a
    /// pointer says that an instance has a subtype.
    fn found(&self) -> impl Iterator<Item = (&Name, &Instance)> {
        let exists = |(name, instance): &(&Name, &Instance)| {
            instance.is_listed
                || instance.service.is_some() && self.known.contains_key(*name) && self.is_of_a_browsed_type(name)
        };
        self.instances.iter().filter(exists)
    }

    /// Returns whether all instances of its type are asked for, and not those of a subtype only.
    fn is_of_a_browsed_type(&self, name: &Name) -> bool {
        let Some((_, rest)) = name.split_first() else { return false };
        self.details.services.iter().any(|service| service.name == rest && service.browsed == rest)
    }

    /// Returns the instances of the last round that neither answered nor said goodbye.
    fn silent(&self) -> impl Iterator<Item = &'a Name> {
        let found: BTreeSet<Name> = self.found().map(|(name, _)| name.clone()).collect();
        let withdrawn: BTreeSet<Name> = self.withdrawn.keys().cloned().collect();
        let known = self.known.keys().cycle().skip(self.start).take(self.known.len());
        let known = known.filter(|name| self.selected(name).is_some()).collect::<Vec<_>>();
        known.into_iter().filter(move |name| !found.contains(*name) && !withdrawn.contains(*name))
    }

    /// Returns the questions whose answers an instance lacks.
    fn missing(&self, name: &Name, instance: &Instance) -> Vec<Question> {
        let ask = |name: &Name, kind| Question { name: name.clone(), kind };
        let mut questions = Vec::new();
        if instance.is_placeholder() {
            return questions;
        }
        match &instance.service {
            None => questions.push(ask(name, Kind::Service)),
            Some((_, host)) if self.addresses(host).is_none() => {
                questions.extend([ask(host, Kind::Ipv4), ask(host, Kind::Ipv6)]);
            }
            Some(_) => {}
        }
        if instance.text.is_none() {
            questions.push(ask(name, Kind::Text));
        }
        questions
    }

    /// Returns questions for addresses of the kind that a host has not shown: it may have both.
    fn further_addresses(&self, instance: &Instance) -> Option<Question> {
        let (_, host) = instance.service.as_ref()?;
        let addresses = self.addresses(host)?;
        let kind = match (addresses.iter().any(IpAddr::is_ipv4), addresses.iter().any(IpAddr::is_ipv6)) {
            (true, true) => return None,
            (false, _) => Kind::Ipv4,
            (true, false) => Kind::Ipv6,
        };
        Some(Question { name: host.clone(), kind })
    }

    fn addresses(&self, host: &Name) -> Option<&BTreeSet<IpAddr>> {
        self.hosts.get(host).filter(|addresses| !addresses.is_empty())
    }

    /// Ends the round. `dropped` datagrams were lost in the host.
    pub fn report(&self, dropped: u64) -> Report {
        let mut report = Report::default();
        let was_lossy = dropped > 0 || self.beyond_limit > 0;
        for (name, instance) in self.found() {
            self.conclude(name, instance, was_lossy, &mut report);
        }
        let is_unasked =
            |name: &&Name| !self.was_asked_enough(&Question { name: (*name).clone(), kind: Kind::Service });
        let silent = self.silent().filter(|name| was_lossy || is_unasked(name));
        let unconfirmed = self.withdrawn.iter().filter(|(_, asked)| was_lossy || !**asked).map(|(name, _)| name);
        for name in silent.chain(unconfirmed) {
            self.keep(name, &mut report);
        }
        report.notes.extend(self.losses(dropped));
        report.notes.extend(self.left_out.iter().map(|name| left_out(name, "the filter `instances`")));
        report
    }

    fn conclude(&self, name: &Name, instance: &Instance, was_lossy: bool, report: &mut Report) {
        let Some((service, label)) = self.selected(name) else { return };
        if instance.is_placeholder() {
            return report.notes.push(left_out(name, "port 0, which says that the host has no such service"));
        }
        let (Some((port, host)), Some(entries)) = (&instance.service, self.entries(name, instance, was_lossy)) else {
            return self.incomplete(name, "port and host, or TXT record", report);
        };
        if self.details.txt.as_ref().is_some_and(|filter| !filter.selects(|p| entries.iter().any(|e| p.matches(e)))) {
            return report.notes.push(left_out(name, "the filter `txt`"));
        }
        let Some(addresses) = self.addresses(host) else {
            return self.incomplete(name, &format!("address of its host {host}"), report);
        };
        let further = self.further_addresses(instance);
        let has_one_kind = further.is_some_and(|question| self.was_asked_enough(&question) || self.had_one_kind(name));
        report.known.insert(name.clone(), Facts { has_text: self.has_text(name), has_one_kind });
        // Link-local addresses are of use only where there are no others: they say nothing of the interface.
        let is_far = |address: &&IpAddr| match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        };
        let far: Vec<String> = addresses.iter().filter(is_far).map(IpAddr::to_string).collect();
        let addresses = if far.is_empty() { addresses.iter().map(IpAddr::to_string).collect() } else { far };
        let fixed = [
            ("INSTANCE", label),
            ("SERVICE", service.label.clone()),
            ("HOST", host.to_string()),
            ("PORT", port.to_string()),
            ("ADDRESSES", addresses.join(",")),
        ];
        let fixed = fixed.into_iter().map(|(name, value)| (format!("MDNS_{name}"), value));
        report.devices.push(Device { id: id(name), properties: with_text(fixed.collect(), entries) });
    }

    /// Returns the entries of an instance. An instance without a record that does not answer questions for it has none
    /// (RFC 6763, section 6.1).
    fn entries<'b>(&self, name: &Name, instance: &'b Instance, was_lossy: bool) -> Option<&'b [Entry]> {
        let question = Question { name: name.clone(), kind: Kind::Text };
        let is_textless = !was_lossy && !self.has_text(name) && self.was_asked_enough(&question);
        instance.text.as_deref().or(is_textless.then_some(&[]))
    }

    /// Returns whether an instance has shown a `TXT` record, in this round or before.
    fn has_text(&self, name: &Name) -> bool {
        let now = self.instances.get(name).is_some_and(|instance| instance.text.is_some());
        now || self.known.get(name).is_some_and(|before| before.has_text)
    }

    fn keep(&self, name: &Name, report: &mut Report) {
        report.kept.push(id(name));
        report
            .known
            .insert(name.clone(), Facts { has_text: self.has_text(name), has_one_kind: self.had_one_kind(name) });
    }

    /// Keeps an instance of which something was not answered.
    fn incomplete(&self, name: &Name, what: &str, report: &mut Report) {
        let message = format!("the service was found, but not its {what}");
        report.notes.push(Note { origin: id(name), reason: "Incomplete", message });
        self.keep(name, report);
    }

    fn losses(&self, dropped: u64) -> impl Iterator<Item = Note> {
        let note = |reason, message: String| Note { origin: String::new(), reason, message };
        let malformed = self.fault.map(|fault| {
            let message = format!("{} responses were skipped; the defect of the last: {fault}", self.malformed);
            note("ResponsesSkipped", message)
        });
        let message = format!("{dropped} responses came too fast and were lost; silent services are kept");
        let lost = (dropped > 0).then(|| note("ResponsesDropped", message));
        let message = format!(
            "the network has more than {MAX_INSTANCES} services of these types, or {MAX_HOSTS} hosts; further ones are \
             ignored, and silent ones are kept"
        );
        let beyond = (self.beyond_limit > 0).then(|| note("TooManyServices", message));
        malformed.into_iter().chain(lost).chain(beyond)
    }
}

fn left_out(name: &Name, filter: &str) -> Note {
    Note { origin: name.to_string(), reason: FILTERED, message: filter.to_owned() }
}

/// Returns the id of an instance. Names that differ in case only are one.
fn id(name: &Name) -> String {
    name.to_lowercase().to_string()
}

/// Adds the entries of the `TXT` record. Of two with one name the first counts.
fn with_text(mut properties: Vec<(String, String)>, entries: &[Entry]) -> Vec<(String, String)> {
    for (name, value) in entries.iter().map(Entry::property) {
        let name = format!("MDNS_TXT_{name}");
        if !properties.iter().any(|(other, _)| *other == name) {
            properties.push((name, value));
        }
    }
    properties
}

#[cfg(test)]
#[path = "browser_tests.rs"]
mod tests;
