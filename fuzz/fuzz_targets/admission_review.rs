//! AdmissionReviews: whatever is sent, the webhook answers with a review of its own or refuses the body, and stays short.
#![no_main]

use akri_webhook::review::{check_alone, parse, response_body};
use libfuzzer_sys::fuzz_target;

/// The start of the input: the spec of an object that somebody creates.
const BEGINNINGS: [&str; 2] = ["configurations", "discoveryhandlers"];

fuzz_target!(|input: &str| {
    check(input);
    for resource in BEGINNINGS {
        check(&format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1","operation":"CREATE",
            "kind":{{"group":"akri.sh","version":"v0","kind":"K"}},"userInfo":{{}},"name":"a","namespace":"b",
            "resource":{{"group":"akri.sh","version":"v0","resource":"{resource}"}},
            "object":{{"apiVersion":"akri.sh/v0","kind":"K","metadata":{{"name":"a"}},"spec":{input}}}}}}}"#
        ));
    }
});

fn check(body: &str) {
    let Ok(request) = parse(body.as_bytes()) else { return };
    let answered = response_body(&request, check_alone(&request)).expect("every outcome can be written");
    assert!(answered.len() < 64 << 10, "{} bytes", answered.len());
}
