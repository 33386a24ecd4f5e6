//! Methods and plans for what was answered, and the choice among them.

use std::path::Path;

use plimsoll_plan::Alternative;
use plimsoll_run::config::{Budget, Method, Resolved, Source, load};
use plimsoll_run::{Cause, Failure, MethodTable, Options, Way, bytes, methods, plan};

use super::draft::Draft;
use super::questions::{asked, picked};
use crate::args::InitArgs;
use crate::printer::{Column, Printer, Table};

/// Of a budget, what the balanced plan may take.
const BALANCED_PERCENT: f64 = 80.0;

/// Shows methods, then the plans of the one that is chosen, and returns the draft of the plan that is chosen. Where nothing
/// fits, the failure says so, and the answers have to change.
pub fn choose(draft: &Draft, printer: &Printer) -> Result<Draft, Failure> {
    printer.remarked(&printer.language().word("planning"));
    let found = methods(&resolved(draft)?, Options::default())?;
    found.notes.iter().for_each(|note| printer.remark(note));
    let draft = choose_method(draft, found, printer)?;
    choose_plan(&draft, printer)
}

fn resolved(draft: &Draft) -> Result<Resolved, Failure> {
    load(Source::Embedded { name: "init", text: &draft.yaml(Path::new("")) }, &InitArgs::overrides())
}

fn choose_method(draft: &Draft, found: MethodTable, printer: &Printer) -> Result<Draft, Failure> {
    // Names of half a model's tensors are for a run file of one's own.
    let whole = |way: &Way| !matches!(&way.method, Method::Full { freeze } if !freeze.is_empty());
    let rows: Vec<(Alternative, Way)> = found.rows.into_iter().zip(found.ways).filter(|(_, way)| whole(way)).collect();
    let shown: Vec<Alternative> = rows.iter().map(|(row, _)| row.clone()).collect();
    printer.report(&[numbered("method", &shown)]);
    let own = shown.iter().position(|row| row.chosen && row.fits);
    let Some(default) = own.or_else(|| shown.iter().position(|row| row.fits)) else {
        return Err(Failure::does_not_fit(format!("no method fits the budget on {}", found.device))
            .hint("a shorter sequence or a larger budget may; Ctrl-C to leave, or answer again"));
    };
    let index = asked(printer, "method", &(default + 1).to_string(), |answer| one_that_fits(answer, &shown, "method"))?;
    let way = &rows[index].1;
    Ok(Draft {
        method: way.method.clone(),
        base: way.base.unwrap_or(draft.base),
        optimizer: way.optimizer.clone(),
        state: way.state,
        ..draft.clone()
    })
}

/// The row that an answer names, if it can be trained.
fn one_that_fits(answer: &str, rows: &[Alternative], what: &str) -> Result<usize, Failure> {
    let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
    let name = picked(answer, &names, what)?;
    let unknown =
        || Failure::usage(format!("there is no {what} `{name}`")).hint(format!("choose 1 to {}", names.len()));
    let index = names.iter().position(|known| known == name).ok_or_else(unknown)?;
    match &rows[index].why_not {
        Some(why_not) if !rows[index].fits => Err(Failure::does_not_fit(format!("{name} does not fit: {why_not}"))
            .hint("choose one that does, or leave with Ctrl-C")),
        _ => Ok(index),
    }
}

fn choose_plan(draft: &Draft, printer: &Printer) -> Result<Draft, Failure> {
    let balanced = Draft { gpu: part_of(&draft.gpu), host: part_of(&draft.host), ..draft.clone() };
    let drafts = [
        ("fastest", Draft { goal: "fastest", ..draft.clone() }),
        ("balanced", Draft { goal: "fastest", ..balanced }),
        ("lowest", Draft { goal: "lowest", ..draft.clone() }),
    ];
    let rows = drafts.iter().map(|(name, draft)| row(name, draft)).collect::<Result<Vec<_>, _>>()?;
    printer.report(&[numbered("plan", &rows)]);
    printer
        .note(format!("balanced is the fastest in {BALANCED_PERCENT} % of the budget, which leaves room for others"));
    let default = rows.iter().position(|row| row.fits).map_or(1, |index| index + 1).to_string();
    let index = asked(printer, "plan", &default, |answer| one_that_fits(answer, &rows, "plan"))?;
    let (name, chosen) = &drafts[index];
    let row = &rows[index];
    let (memory, size) = if row.gpu_bytes > 0 { ("GPU", row.gpu_bytes) } else { ("host", row.host_bytes) };
    let words = format!(
        "{name}, {} of {memory} memory, micro-batches of {} tokens, {:.0} tokens/s predicted",
        bytes(size),
        row.micro_batch_tokens,
        row.tokens_per_s
    );
    Ok(Draft { chosen: Some(words), ..chosen.clone() })
}

/// The balanced part of a budget.
fn part_of(budget: &str) -> String {
    match Budget::parse(budget) {
        Ok(Budget::Auto) => format!("{BALANCED_PERCENT}%"),
        Ok(Budget::Percent(percent)) => format!("{}%", percent * BALANCED_PERCENT / 100.0),
        Ok(Budget::Bytes(bytes)) => format!("{}MiB", (bytes as f64 * BALANCED_PERCENT / 100.0) as u64 >> 20),
        Err(_) => budget.to_owned(),
    }
}

/// A plan as a row of the table; one that does not fit says so.
fn row(name: &str, draft: &Draft) -> Result<Alternative, Failure> {
    match plan(&resolved(draft)?, Options::default()) {
        Ok(planned) => Ok(planned.report.as_alternative(name)),
        Err(failure) => match &failure.cause {
            Cause::DoesNotFit(Some(refusal)) => {
                let over = bytes(refusal.needed_bytes.saturating_sub(refusal.budget_bytes));
                let lowest = refusal.alternatives.last().cloned();
                let why_not = Some(format!("at least {over} over the {} budget", refusal.memory));
                let lowest = lowest.ok_or_else(|| failure.clone())?;
                Ok(Alternative { name: name.to_owned(), why_not, fits: false, chosen: false, ..lowest })
            }
            _ => Err(failure),
        },
    }
}

fn numbered(what: &'static str, rows: &[Alternative]) -> Table {
    let on_gpu = rows.iter().any(|row| row.gpu_bytes > 0);
    let mut table = Table::new(&[
        Column::right(""),
        Column::left(what),
        Column::right("micro-batch"),
        Column::right(if on_gpu { "GPU" } else { "host" }),
        Column::right("tokens/s"),
        Column::left(""),
    ]);
    for (index, row) in rows.iter().enumerate() {
        table.row([
            (index + 1).to_string(),
            row.name.clone(),
            row.micro_batch_tokens.to_string(),
            bytes(if on_gpu { row.gpu_bytes } else { row.host_bytes }),
            format!("{:.0}", row.tokens_per_s),
            row.why_not.clone().unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_any_budget() {
        for (budget, expected) in [("auto", "80%"), ("50%", "40%"), ("10GiB", "8192MiB")] {
            assert_eq!(part_of(budget), expected);
        }
    }

    #[test]
    fn only_what_fits_can_be_chosen() {
        let row = |name: &str, why_not: Option<&str>| Alternative {
            name: name.to_owned(),
            micro_batch_tokens: 512,
            gpu_bytes: 1,
            host_bytes: 1,
            tokens_per_s: 1.0,
            fits: why_not.is_none(),
            chosen: false,
            why_not: why_not.map(str::to_owned),
        };
        let rows = [row("lora, rank 8", None), row("full", Some("2.00 GiB over the budget"))];
        let check = |answer: &str| one_that_fits(answer, &rows, "method").map_err(|failure| failure.message());
        assert_eq!(check("1"), Ok(0));
        assert_eq!(check("lora, rank 8"), Ok(0));
        assert_eq!(check("2"), Err("full does not fit: 2.00 GiB over the budget".to_owned()));
        assert_eq!(check("half"), Err("there is no method `half`".to_owned()));
        assert_eq!(check("3"), Err("there is no method 3".to_owned()));
    }
}
