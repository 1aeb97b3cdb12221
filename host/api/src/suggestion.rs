//! Suggestions for misspelt names.

/// Returns `, did you mean 'X'?` with the most similar candidate, or nothing if none is similar.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let lower = name.to_lowercase();
    let distance = |candidate: &str| strsim::damerau_levenshtein(&lower, &candidate.to_lowercase());
    let alike = candidates.into_iter().filter(|candidate| candidate.len().abs_diff(name.len()) <= 2);
    let near = alike.map(|candidate| (distance(candidate), candidate)).min();
    near.filter(|(distance, candidate)| *distance <= 2 && *distance < candidate.len().min(name.len()))
        .map_or_else(String::new, |(_, candidate)| format!(", did you mean '{candidate}'?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested() {
        let known = ["capacity", "kind", "udev", "onvif"];
        for (name, suggested) in
            [("capacty", "capacity"), ("Kind", "kind"), ("udve", "udev"), ("ONVIF", "onvif"), ("onviff", "onvif")]
        {
            assert_eq!(did_you_mean(name, known), format!(", did you mean '{suggested}'?"));
        }
        for name in ["", "x", "ab", "opcua", "capability-of-things"] {
            assert_eq!(did_you_mean(name, known), "");
        }
    }
}
