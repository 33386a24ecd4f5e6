//! Verdicts on recorded situations, which `doctor/make.py` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use plimsoll_observe::doctor::{Finding, diagnose};
use plimsoll_observe::machine::Machine;
use serde::Deserialize;

#[derive(Deserialize)]
struct Situation {
    /// All the findings, with their severity; there must be no others.
    must: BTreeMap<String, String>,
    /// Parts of what is said, and what must not be said.
    says: Vec<String>,
    never: Vec<String>,
    machine: Machine,
}

fn severity(finding: &Finding) -> String {
    serde_json::to_value(finding.severity).expect("a name").as_str().expect("a name").to_owned()
}

#[test]
fn recorded_situations_lead_to_their_findings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor");
    let (mut faults, mut count, mut seen) = (Vec::new(), 0, BTreeSet::new());
    for entry in fs::read_dir(folder).expect("recorded").filter_map(Result::ok) {
        let path = entry.path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        count += 1;
        let text = fs::read_to_string(&path).expect("readable");
        let situation: Situation = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let findings = diagnose(&situation.machine);
        let found: BTreeMap<String, String> = findings.iter().map(|f| (f.code.to_owned(), severity(f))).collect();
        if found != situation.must {
            faults.push(format!("{}: {found:?}, not {:?}", path.display(), situation.must));
        }
        let said: String = findings.iter().map(|finding| format!("{}\n{}\n", finding.text, finding.remedy)).collect();
        let missing = situation.says.iter().filter(|part| !said.contains(part.as_str()));
        let unwanted = situation.never.iter().filter(|part| said.contains(part.as_str()));
        faults.extend(missing.chain(unwanted).map(|part| format!("{}: `{part}` in: {said}", path.display())));
        for Finding { code, text, remedy, .. } in findings {
            assert!(!text.is_empty() && !remedy.is_empty() && !text.ends_with('.'), "{code}");
            seen.insert(code);
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(count >= 30 && seen.len() >= 24, "{count} situations with {} kinds of findings", seen.len());
}

/// The worst is said first.
#[test]
fn errors_come_before_remarks() {
    let text = include_str!("doctor/busy_half_empty_and_swapping.json");
    let situation: Situation = serde_json::from_str(text).expect("recorded");
    let findings = diagnose(&situation.machine);
    assert_eq!(findings.first().map(|finding| finding.code), Some("swapping"));
    assert!(findings[0].text.contains("100 %"), "{}", findings[0].text);
}
