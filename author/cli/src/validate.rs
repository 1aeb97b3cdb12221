//! `akri handler validate`: a component's check of the details of Configurations.

use std::process::ExitCode;

use akri_api::{DiscoveryHandler, HandlerRules};
use akri_cli::component::read;
use akri_cli::output::{print, print_message};
use akri_cli::subject::{self, Subject};
use akri_discovery::{call, details_json, validate_details};
use akri_model::datagram::DatagramFilter;
use akri_model::discovery::{RoundError, Trigger};
use akri_model::property::Resolved;
use akri_sandbox::{Cache, Component};
use serde::Serialize;

use crate::args::ValidateArgs;
use crate::component::load;
use crate::rules::subjects;

/// The result for one Configuration.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Validation {
    configuration: String,
    valid: bool,
    /// The triggers of rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    triggers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Problem>,
    /// The error of the component, if it gave no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// An error in the details.
#[derive(Debug, Serialize)]
struct Problem {
    file: String,
    line: Option<u64>,
    /// JSON pointer of the field.
    field: String,
    reason: String,
    message: String,
}

/// Validates the Configurations. Fails if the details of one are refused, or not checked.
pub(super) async fn run(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let component = load(&args.component, read(&args.component)?).await?;
    let mut validations = Vec::new();
    for subject in subjects(&args.file, &subject::read(&args.file)?, &component.description().name)? {
        validations.push(validation(&component, &subject).await);
    }
    print(&validations, args.output, || validations.iter().map(line).collect())?;
    let valid = validations.iter().all(|validation| validation.valid);
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks the component about a Configuration, and prints its errors.
async fn validation(component: &Component, subject: &Subject) -> Validation {
    let rules = HandlerRules::from(&DiscoveryHandler::default());
    let details = details_json(&subject.configuration.details).await;
    let call = call(&subject.configuration, details, &rules, Resolved::default(), Cache::default());
    let configuration = subject.configuration.key.to_string();
    let invalid = Validation { configuration, valid: false, triggers: Vec::new(), problems: Vec::new(), error: None };
    match validate_details(component, call).await {
        Ok(triggers) => Validation { valid: true, triggers: triggers.iter().map(trigger).collect(), ..invalid },
        Err(RoundError::InvalidDetails(problems)) => {
            let located = subject.manifest.locate_problems(&subject.configuration.details, &problems);
            located.iter().for_each(|error| print_message(format!("error: {error}")));
            let problems = located.into_iter().zip(problems).map(|(error, problem)| Problem {
                file: error.file.display().to_string(),
                line: error.line,
                field: error.field,
                reason: problem.reason,
                message: problem.message,
            });
            Validation { problems: problems.collect(), ..invalid }
        }
        Err(error) => {
            print_message(format!("error: {}", subject.failure(&error)));
            Validation { error: Some(error.to_string()), ..invalid }
        }
    }
}

/// Formats a trigger as text.
pub(super) fn trigger(trigger: &Trigger) -> String {
    match trigger {
        Trigger::Uevent(subsystem) => format!("uevent {subsystem}"),
        Trigger::Multicast { group, filter: DatagramFilter::Any } => format!("multicast {group}"),
        Trigger::Multicast { group, filter } => format!("multicast {group} {filter}"),
        Trigger::Interval(interval) => format!("every {interval:?}"),
    }
}

fn line(validation: &Validation) -> String {
    let Validation { configuration, valid, triggers, .. } = validation;
    match (valid, triggers.is_empty()) {
        (false, _) => format!("{configuration}: invalid\n"),
        (true, true) => format!("{configuration}: valid\n"),
        (true, false) => format!("{configuration}: valid; rounds are started by: {}\n", triggers.join(", ")),
    }
}
