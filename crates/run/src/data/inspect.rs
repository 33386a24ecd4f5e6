//! Data files before there is a run: what their rows are, how many, and what they could train.

use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_data::{Content, DataError, Format, RowFormat, Source};

use super::refuse_pointer;
use crate::failure::Failure;

/// What was found out about files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The format of the rows, with the columns that hold it.
    pub format: String,
    pub rows: u64,
    /// Whether all rows were counted: large files are not read to their end.
    pub all_counted: bool,
    pub bytes: u64,
    /// What such rows train, the likeliest first.
    pub tasks: Vec<&'static str>,
}

/// Counting takes no longer.
const COUNTING_MAX: Duration = Duration::from_secs(2);
/// Bad rows before the first good one.
const BAD_FIRST_MAX: usize = 100;

/// The columns that say what a row is for beside its text.
const RELEVANCE: &str = "auxiliary_labels";
const CLASS: [&str; 2] = ["label", "class"];

/// Looks at the first row of some files, patterns or folders, and counts the rows.
pub fn inspect(entries: &[String]) -> Result<Inspected, Failure> {
    entries.iter().map(Path::new).try_for_each(refuse_pointer)?;
    let source = Source::open(entries)?;
    let began = Instant::now();
    let (mut rows, mut bad, mut all_counted) = (0, 0, true);
    let mut first = None;
    let mut failed = None;
    for row in source.all() {
        match row {
            Ok(row) => {
                rows += 1;
                first.get_or_insert(row);
            }
            Err(error) if error.is_bad_row() && bad < BAD_FIRST_MAX => {
                bad += 1;
                failed.get_or_insert(error);
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        if began.elapsed() > COUNTING_MAX {
            all_counted = false;
            break;
        }
    }
    let Some(first) = first else {
        let empty = || Failure::bad_input(format!("{} has no rows", source.name()));
        return Err(failed.map_or_else(empty, Failure::from));
    };
    let format = |content: Content| content.row_format(Format::Auto, &first);
    let has = |name: &str| first.columns.get(name).is_some_and(|value| !value.is_null());
    let (format, tasks) = match (format(Content::Candidates), format(Content::Pairs), format(Content::Answers)) {
        (Ok(found), _, _) if has(RELEVANCE) => (found, vec!["ranking", "sft"]),
        (_, Ok(found), _) => (found, vec!["reward", "dpo", "orpo"]),
        (_, _, answers) => of_texts(answers, CLASS.iter().any(|name| has(name)), &format)?,
    };
    Ok(Inspected { format: format.explain(&first), rows, all_counted, bytes: source.bytes(), tasks })
}

/// Rows that are neither compared nor ranked.
fn of_texts(
    answers: Result<RowFormat, DataError>,
    has_class: bool,
    format: &dyn Fn(Content) -> Result<RowFormat, DataError>,
) -> Result<(RowFormat, Vec<&'static str>), DataError> {
    let labelled = format(Content::Labelled).ok().filter(|_| has_class);
    let (found, mut tasks) = match answers {
        Ok(RowFormat::Text) => (RowFormat::Text, vec!["pretrain", "sft"]),
        Ok(found @ RowFormat::PromptResponse) => (found, vec!["sft", "seq2seq"]),
        Ok(found) => (found, vec!["sft"]),
        Err(error) => return labelled.map(|found| (found, vec!["classification"])).ok_or(error),
    };
    if labelled.is_some() && found == RowFormat::Text {
        tasks.insert(0, "classification");
    }
    Ok((found, tasks))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rows_say_what_they_train() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let check = |row: &str, format: &str, tasks: &[&str]| {
            fs::write(&path, format!("{row}\n{row}\n")).expect("writable");
            let found = inspect(&[path.display().to_string()]).expect("readable");
            assert!(found.format.starts_with(format), "{row}: {found:?}");
            assert_eq!((found.rows, found.all_counted, found.tasks.as_slice()), (2, true, tasks), "{row}");
        };
        check(r#"{"prompt": "a", "response": "b"}"#, "prompt", &["sft", "seq2seq"]);
        check(r#"{"text": "a"}"#, "text", &["pretrain", "sft"]);
        check(r#"{"text": "a", "label": 1}"#, "text", &["classification", "pretrain", "sft"]);
        check(r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#, "pairs", &["reward", "dpo", "orpo"]);
        let turns = r#""messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
        check(&format!("{{{turns}}}"), "messages", &["sft"]);
        check(&format!("{{{turns}, \"auxiliary_labels\": [1]}}"), "messages", &["ranking", "sft"]);
    }

    #[test]
    fn files_that_cannot_be_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl").display().to_string();
        let refused = || inspect(std::slice::from_ref(&path)).expect_err("no rows").message();
        assert!(refused().contains("rows.jsonl"));
        fs::write(&path, "").expect("writable");
        assert!(refused().contains("rows.jsonl"));
        fs::write(&path, "{\"a\": 1}\n").expect("writable");
        assert!(refused().contains("rows.jsonl"));
    }
}
