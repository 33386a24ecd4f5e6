//! `plimsoll tokenizer train`: a vocabulary from one's own data.

use std::path::Path;

use plimsoll_data::{Source, TrainedTokenizer, VocabularyKind, VocabularyOptions, VocabularyProgress, train_tokenizer};
use plimsoll_run::config::Budget;
use plimsoll_run::{Failure, bytes, requested_vocabulary};
use serde_json::json;

use crate::args::{TokenizerCommand, TokenizerTrainArgs, Vocabulary};
use crate::printer::Printer;

pub fn run(command: &TokenizerCommand, printer: &Printer) -> Result<(), Failure> {
    match command {
        TokenizerCommand::Train(args) => train(args, printer),
    }
}

fn train(args: &TokenizerTrainArgs, printer: &Printer) -> Result<(), Failure> {
    refuse_to_overwrite(&args.out, args.force)?;
    let options = options(args)?;
    let source = Source::open(&args.data)?;
    // Text can be less than the files that hold it, and more where they are packed.
    let total = options.limit_bytes.map_or(source.bytes(), |limit| limit.min(source.bytes()));
    let mut progress = printer.progress("reading", total);
    let mut count = |so_far: VocabularyProgress| progress.advance_to(so_far.text_bytes.min(total));
    let trained = train_tokenizer(&source, &options, &mut count).map_err(requested_vocabulary)?;
    progress.finish();
    trained.save(&args.out)?;
    report(&trained, args, printer);
    Ok(())
}

fn refuse_to_overwrite(folder: &Path, force: bool) -> Result<(), Failure> {
    let path = folder.join("tokenizer.json");
    if path.exists() && !force {
        return Err(Failure::usage(format!("{} already exists", path.display()))
            .hint("choose another folder with --out, or overwrite it with --force"));
    }
    Ok(())
}

fn options(args: &TokenizerTrainArgs) -> Result<VocabularyOptions, Failure> {
    let kind = match args.kind {
        Vocabulary::Bpe => VocabularyKind::Bpe,
        Vocabulary::Unigram => VocabularyKind::Unigram,
    };
    let mut options = VocabularyOptions::new(kind, args.vocab_size);
    options.specials.clone_from(&args.special);
    options.template.clone_from(&args.template);
    options.limit_bytes = args.limit.as_deref().map(size).transpose()?;
    Ok(options)
}

fn size(text: &str) -> Result<u64, Failure> {
    match Budget::parse(text) {
        Ok(Budget::Bytes(bytes)) => Ok(bytes),
        _ => {
            Err(Failure::usage(format!("--limit must be a size, not `{text}`")).hint("for example `2GiB` or `500MiB`"))
        }
    }
}

fn report(trained: &TrainedTokenizer, args: &TokenizerTrainArgs, printer: &Printer) {
    let VocabularyProgress { rows, bad_rows, text_bytes, words, dropped } = trained.counted;
    if bad_rows > 0 {
        printer.warning(format!("skipped {bad_rows} of {rows} rows: unreadable"));
    }
    if trained.vocab_size < args.vocab_size {
        printer.warning(format!(
            "the text yields only {} tokens, fewer than the {} requested",
            trained.vocab_size, args.vocab_size
        ));
    }
    if printer.is_json() {
        printer.json(&json!({
            "out": args.out.display().to_string(), "vocab_size": trained.vocab_size, "rows": rows, "bad_rows": bad_rows,
            "text_bytes": text_bytes, "words": words, "words_dropped": dropped,
        }));
    } else {
        printer.data(format!(
            "{}: {} tokens from {rows} rows, {} of text, {words} distinct words",
            args.out.display(),
            trained.vocab_size,
            bytes(text_bytes)
        ));
    }
}
