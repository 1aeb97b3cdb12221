//! Rules of the udev handler: what is read and printed again reads the same, and an error points into the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use udev::rule::Rule;

fuzz_target!(|text: &str| {
    match text.parse::<Rule>() {
        Ok(rule) => assert_eq!(rule.to_string().parse(), Ok(rule)),
        Err(error) => assert!(!error.explain(text).is_empty()),
    }
});
