//! `akri get` and `akri drain`: what a local agent or a cluster has, as rows.

pub(crate) mod args;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use akri_api::suggestion::did_you_mean;
use akri_cli::output::{Columns, age, plain, print_message, print_text, table, write};
use akri_model::names::RESOURCE_PREFIX;
use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::sleep;

use self::args::{DrainArgs, Format, ListArgs, ListOptions, Listing};
use self::rows::{AGE, Kind, Row};
use crate::observed::{Observed, local};

/// Warnings that are printed; of others the number.
const WARNINGS: usize = 10;

/// Time between the first two reads of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);

/// Prints the requested objects.
pub(crate) async fn run(listing: &Listing) -> anyhow::Result<ExitCode> {
    let (kind, ListArgs { name, options }) = match listing {
        Listing::Devices(args) => (&rows::DEVICES, args),
        Listing::Slots(args) => (&rows::SLOTS, args),
        Listing::Instances(args) => (&rows::INSTANCES, args),
        Listing::Configurations(args) => (&rows::CONFIGURATIONS, args),
        Listing::Handlers(args) => (&rows::HANDLERS, args),
    };
    let list = List::new(kind, name.as_deref(), options);
    let observed = list.observe().await?;
    list.show(list.select((kind.rows)(&observed))?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the pods that would be interrupted on a node. Fails if there are any.
pub(crate) async fn drain(DrainArgs { node, options }: &DrainArgs) -> anyhow::Result<ExitCode> {
    let list = List { name: Some(node), ..List::new(&rows::USERS, None, options) };
    let observed = list.observe().await?;
    if let Some(missing) = observed.not_listed() {
        bail!("{missing}, and nobody knows what would be interrupted");
    }
    let nodes: Vec<String> = observed.nodes.iter().cloned().collect();
    found(nodes.is_empty() || nodes.contains(node), "node", node, &nodes)?;
    let rows = list.matching((list.kind.rows)(&observed));
    let is_free = rows.is_empty();
    list.show(rows).await?;
    Ok(if is_free { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the Instances of a state directory as a table; `None` if there are none.
pub(crate) fn instances_of(state: &Path) -> Option<String> {
    let rows = (rows::INSTANCES.rows)(&local::instances(state).ok()?);
    let cells: Vec<Vec<String>> = rows.into_iter().map(|row| row.cells).collect();
    (!cells.is_empty()).then(|| table(rows::INSTANCES.header, &cells))
}

/// The rows that the flags select, and how they are printed.
struct List<'a> {
    kind: &'static Kind,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    options: &'a ListOptions,
}

impl<'a> List<'a> {
    fn new(kind: &'static Kind, name: Option<&'a str>, options: &'a ListOptions) -> Self {
        let name = name.map(|name| name.strip_prefix(RESOURCE_PREFIX).unwrap_or(name));
        let split = name.and_then(|name| name.split_once('/'));
        let namespace = split.map(|(namespace, _)| namespace).or(options.namespace.as_deref());
        Self { kind, namespace, name: split.map(|(_, name)| name).or(name), options }
    }

    /// Reads everything, and prints what is wrong with it.
    async fn observe(&self) -> anyhow::Result<Observed> {
        let observed = Observed::read(&self.options.source).await?;
        let warnings: Vec<String> =
            observed.not_listed().into_iter().chain(warnings(&observed).into_iter().cloned()).collect();
        warnings.iter().take(WARNINGS).for_each(|warning| print_message(format!("warning: {}", plain(warning))));
        if warnings.len() > WARNINGS {
            print_message(format!("warning: and {} more of these", warnings.len() - WARNINGS));
        }
        Ok(observed)
    }

    fn matching(&self, mut rows: Vec<Row>) -> Vec<Row> {
        rows.retain(|row| {
            let is_in = self.namespace.is_none_or(|of| row.namespace.as_deref().is_none_or(|own| own == of));
            is_in && self.name.is_none_or(|name| row.names.iter().any(|own| own == name))
        });
        rows
    }

    /// Returns the rows that are selected. Fails if there is none of the given name.
    fn select(&self, rows: Vec<Row>) -> anyhow::Result<Vec<Row>> {
        let names: Vec<String> = rows.iter().flat_map(|row| row.names.clone()).collect();
        let rows = self.matching(rows);
        if let Some(name) = self.name {
            let [one, _] = self.kind.names;
            found(!rows.is_empty(), one, name, &names)?;
        }
        Ok(rows)
    }

    /// Prints rows, and with `--watch` each that changes; one that is gone as it was.
    async fn show(&self, mut rows: Vec<Row>) -> anyhow::Result<()> {
        let (mut columns, mut pause) = (Columns::default(), PAUSE);
        print_text(&self.first(&rows, &mut columns)?)?;
        if !self.options.watch {
            return Ok(());
        }
        loop {
            sleep(pause).await;
            match Observed::read(&self.options.source).await {
                Ok(observed) => {
                    pause = observed.good_for;
                    let now = self.matching((self.kind.rows)(&observed));
                    match write(&self.each(&self.changes(&rows, &now), &mut columns)?) {
                        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()), // nobody reads on
                        written => written.context("cannot write to standard output")?,
                    }
                    rows = now;
                }
                Err(error) => print_message(format!("warning: {error:#}")),
            }
        }
    }

    /// Returns the first rows: a table with a header, or one document for all.
    fn first(&self, rows: &[Row], columns: &mut Columns) -> anyhow::Result<String> {
        let all: Vec<&Row> = rows.iter().collect();
        match (rows, self.options.output) {
            (_, Format::Name) => self.each(&all, columns),
            ([], Format::Table | Format::Wide) if !self.options.watch => Ok(format!("no {}\n", self.kind.names[1])),
            (_, Format::Table | Format::Wide) => {
                let wide = self.kind.wide.iter().filter(|_| self.options.output == Format::Wide);
                let header: Vec<String> = self.kind.header.iter().chain(wide).map(ToString::to_string).collect();
                let cells: Vec<Vec<String>> = rows.iter().map(|row| self.cells(row)).collect();
                Ok(columns.lines([header].iter().chain(&cells)))
            }
            ([row], format) if self.name.is_some() && row.names.first().map(String::as_str) == self.name => {
                document(&row.value, format)
            }
            (_, format) if !self.options.watch => document(&rows.iter().map(|row| row.value.clone()).collect(), format),
            _ => self.each(&all, columns),
        }
    }

    /// Returns rows without a header, each for itself.
    fn each(&self, rows: &[&Row], columns: &mut Columns) -> anyhow::Result<String> {
        match self.options.output {
            Format::Table | Format::Wide => {
                let cells: Vec<Vec<String>> = rows.iter().map(|row| self.cells(row)).collect();
                Ok(columns.lines(cells.iter()))
            }
            Format::Name => {
                let line = |row: &&Row| Some(format!("{}/{}\n", self.kind.resource, row.names.first()?));
                Ok(rows.iter().filter_map(line).collect())
            }
            Format::Yaml => {
                rows.iter().map(|row| Ok(format!("---\n{}", document(&row.value, Format::Yaml)?))).collect()
            }
            format => rows.iter().map(|row| document(&row.value, format)).collect(),
        }
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let mut cells = row.cells.clone();
        if self.options.output == Format::Wide {
            let seconds = row.created.map(|created| Timestamp::now().as_second() - created.as_second());
            let has_age = self.kind.wide.contains(&AGE);
            cells.extend(row.wide.clone());
            cells.extend(has_age.then(|| seconds.map_or_else(|| "-".to_owned(), age)));
        }
        cells
    }

    /// Returns the rows that have changed, and those that are gone.
    fn changes<'r>(&self, before: &'r [Row], now: &'r [Row]) -> Vec<&'r Row> {
        let mut known = BTreeMap::<_, Vec<&Row>>::new(); // a component and a remote handler may have one name
        before.iter().for_each(|row| known.entry(key(row)).or_default().push(row));
        let is_known = |row: &Row| known.get(&key(row)).is_some_and(|of| of.iter().any(|of| self.is_same(row, of)));
        let keys: BTreeSet<_> = now.iter().map(key).collect();
        let changed = now.iter().filter(|row| !is_known(row));
        changed.chain(before.iter().filter(|row| !keys.contains(&key(row)))).collect()
    }

    /// Returns whether nothing that is shown of a row has changed.
    fn is_same(&self, row: &Row, before: &Row) -> bool {
        match self.options.output {
            Format::Table | Format::Name => row.cells == before.cells,
            Format::Wide => (&row.cells, &row.wide) == (&before.cells, &before.wide),
            _ => row.value == before.value,
        }
    }
}

/// Returns what tells rows apart: namespace, name and, where a device has a row for each node, the node.
fn key(row: &Row) -> [Option<&String>; 3] {
    [row.namespace.as_ref(), row.names.first(), row.cells.first()]
}

fn found(is_there: bool, kind: &str, name: &str, names: &[String]) -> anyhow::Result<()> {
    let suggestion = did_you_mean(name, names.iter().map(String::as_str));
    ensure!(is_there, "there is no {kind} '{}'{suggestion}", plain(name));
    Ok(())
}

/// Returns what is wrong with the agents and kubelets of devices, and with manifests.
fn warnings(observed: &Observed) -> Vec<&String> {
    let has_devices =
        |node: &str| observed.instances.iter().any(|instance| instance.spec.nodes.iter().any(|of| of == node));
    let (agents, kubelets) = (&observed.agents, &observed.kubelets);
    match agents.get("") {
        Some(stopped) => vec![stopped],
        None => {
            let of_nodes = agents.iter().chain(kubelets).filter(|(node, _)| node.is_empty() || has_devices(node));
            observed.manifests.iter().chain(of_nodes.map(|(_, why)| why)).collect()
        }
    }
}

fn document(value: &Value, format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string_pretty(value)? + "\n",
        _ => serde_saphyr::to_string(value).context("cannot write YAML")?,
    })
}
