//! The findings of the checks of a request, and their text for the user.

use akri_api::validate::FieldError;
use akri_model::text::dotted;
use akri_model::text::shorten;
use kube::core::Status;
use kube::core::admission::AdmissionResponse;
use kube::core::response::{StatusCause, StatusDetails};

use crate::configuration::name;
use crate::review::Request;

/// Findings that are shown; the rest is counted.
const SHOWN: usize = 10;
/// Characters of one finding.
const FINDING: usize = 600;
/// Characters of a warning: API servers cut longer ones.
const WARNING: usize = 250;

/// A reason to refuse an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The field as people write it, such as `spec.capacity`; empty for the whole object.
    pub field: String,
    /// The problem and the correction.
    pub message: String,
}

impl Finding {
    /// A finding about a field, written with dots.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl From<FieldError> for Finding {
    fn from(error: FieldError) -> Self {
        Self { field: dotted(&error.path), message: error.message }
    }
}

/// The outcome of all checks of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReviewOutcome {
    /// The reasons why the object is invalid.
    pub invalid: Vec<Finding>,
    /// The reasons why the user may not write it, though it is valid.
    pub forbidden: Vec<Finding>,
    /// Warnings about an object that is accepted.
    pub warnings: Vec<String>,
}

impl ReviewOutcome {
    /// Invalid, if there are findings.
    pub fn invalid(findings: impl IntoIterator<Item = impl Into<Finding>>) -> Self {
        Self { invalid: findings.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Valid, with a warning.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { warnings: vec![text.into()], ..Self::default() }
    }

    /// Returns whether the object may be stored.
    pub fn is_allowed(&self) -> bool {
        self.invalid.is_empty() && self.forbidden.is_empty()
    }

    /// Both outcomes together.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.invalid.extend(other.invalid);
        self.forbidden.extend(other.forbidden);
        self.warnings.extend(other.warnings);
        self
    }

    pub(crate) fn respond(self, request: &Request) -> AdmissionResponse {
        let mut response = AdmissionResponse::invalid("");
        response.uid.clone_from(&request.uid);
        response.allowed = self.is_allowed();
        response.result = if response.allowed { Status::default() } else { self.status(request) };
        let warnings: Vec<String> = self.warnings.iter().take(SHOWN).map(|text| shorten(text, WARNING)).collect();
        response.warnings = (!warnings.is_empty()).then_some(warnings);
        response
    }

    /// The code and the reason decide how clients name the error. Of one that is invalid, kubectl shows kind, name and causes:
    /// `The Configuration "cam" is invalid: spec.capacity: ...`.
    fn status(&self, request: &Request) -> Status {
        let (code, reason, findings) = match self.invalid.is_empty() {
            false => (422, "Invalid", &self.invalid),
            true => (403, "Forbidden", &self.forbidden),
        };
        let cause = |finding: &Finding| StatusCause {
            reason: format!("FieldValue{reason}"),
            message: shorten(&finding.message, FINDING),
            field: shorten(&finding.field, FINDING),
        };
        let causes = findings.iter().take(SHOWN).map(cause).collect();
        let (group, kind) = (request.kind.group.clone(), request.kind.kind.clone());
        let name = shorten(&name(request), FINDING);
        let details = StatusDetails { name, group, kind, uid: String::new(), causes, retry_after_seconds: 0 };
        Status {
            code,
            reason: reason.to_owned(),
            details: Some(details),
            ..Status::failure(&message(findings), reason)
        }
    }
}

/// Joins findings: one is on the line of the error, several are on a line each.
fn message(findings: &[Finding]) -> String {
    let mut lines: Vec<String> = findings.iter().take(SHOWN).map(sentence).collect();
    if findings.len() > SHOWN {
        lines.push(format!("and {} more", findings.len() - SHOWN));
    }
    match lines.as_slice() {
        [line] => line.clone(),
        lines => format!("{} problems:\n- {}", findings.len(), lines.join("\n- ")),
    }
}

fn sentence(finding: &Finding) -> String {
    let message = shorten(&finding.message, FINDING);
    if finding.field.is_empty() { message } else { format!("{}: {message}", shorten(&finding.field, FINDING)) }
}

/// Returns the reason why a request to the API server failed, in the API server's words if it has any.
pub(crate) fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::review::{parse, response_body};
    use crate::testing::review;

    fn answered(outcome: ReviewOutcome) -> Value {
        let request = review("configurations", "CREATE", &json!({"metadata": {"name": "cam"}}), &Value::Null);
        let request = parse(request.to_string().as_bytes()).unwrap();
        serde_json::from_slice(&response_body(&request, outcome).unwrap()).unwrap()
    }

    #[test]
    fn response_belongs_to_its_request() {
        let answer = answered(ReviewOutcome::warning("beware"));
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], "0c9a8d74");
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["warnings"], json!(["beware"]));
    }

    #[test]
    fn denial_names_each_field_and_its_problem() {
        let one = ReviewOutcome::invalid([FieldError::new("/spec/capacity", "0 is not between 1 and 1000")]);
        let answer = answered(one.clone());
        let status = &answer["response"]["status"];
        assert_eq!(answer["response"]["allowed"], false);
        assert_eq!(status["message"], "spec.capacity: 0 is not between 1 and 1000");
        assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
        assert_eq!(status["details"]["causes"][0]["field"], "spec.capacity");
        assert_eq!((&status["details"]["kind"], &status["details"]["name"]), (&json!("Configuration"), &json!("cam")));
        let two = one.and(ReviewOutcome::invalid([Finding::new("", "is odd")]));
        let answer = answered(two);
        let expected = "2 problems:\n- spec.capacity: 0 is not between 1 and 1000\n- is odd";
        assert_eq!(answer["response"]["status"]["message"], expected);
    }

    #[test]
    fn forbidden_is_reported_once_the_object_is_valid() {
        let forbidden = ReviewOutcome { forbidden: vec![Finding::new("spec.x", "no")], ..ReviewOutcome::default() };
        assert_eq!(answered(forbidden.clone())["response"]["status"]["code"], 403);
        let both = forbidden.and(ReviewOutcome::invalid([Finding::new("spec.y", "wrong")]));
        let status = answered(both)["response"]["status"].clone();
        assert_eq!((&status["code"], &status["message"]), (&json!(422), &json!("spec.y: wrong")));
    }

    #[test]
    fn answers_stay_short() {
        let findings: Vec<Finding> = (0..1000).map(|n| Finding::new(format!("f{n}"), "é".repeat(5000))).collect();
        let answer = answered(ReviewOutcome::invalid(findings));
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.ends_with("and 990 more") && message.chars().count() < 7000, "{}", message.len());
        assert_eq!(answer["response"]["status"]["details"]["causes"].as_array().unwrap().len(), 10);
    }
}
