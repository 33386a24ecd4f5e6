//! Training a tokenizer: byte-level BPE or unigram pieces from the rows of a source, in bounded memory.
//!
//! Texts are cut into words while they are read and only the words' counts are kept, at most `words_max` of them
//! (`words`); the trainers of the `tokenizers` crate work on the counts.

mod words;
mod write;

use ahash::AHashSet;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, ModelWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

pub use write::TrainedTokenizer;

use crate::error::DataError;
use crate::format::{RowFormat, Sample};
use crate::read::{Row, Source};
use words::Words;

/// Text handed to the worker threads at a time.
const BATCH_BYTES: usize = 4 << 20;
/// What unknown characters are written as before bytes take their place (`VocabularyKind::Unigram`).
const UNKNOWN: &str = "<unk>";

/// Stands for a space (`VocabularyKind::Unigram`).
const SPACE: char = '▁';
/// Letters that are pieces in any case, as is the mark for a space: in Chinese it is rare, but not to be spelt in bytes
/// (`VocabularyKind::Unigram`).
const ALPHABET: std::ops::RangeInclusive<char> = '!'..='~';
/// So unlikely that a text with the letters `<0x0A>` in it is spelt rather than taken for that byte. The letters are always
/// in the alphabet.
const SCORE_NEVER: f64 = -200.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VocabularyKind {
    /// Pairs of bytes joined by frequency, as GPT-2's and most since: every text can be written.
    #[default]
    Bpe,
    /// Pieces chosen by likelihood, as T5's; single bytes stand for what no piece covers.
    Unigram,
}

#[derive(Debug, Clone)]
pub struct VocabularyOptions {
    pub kind: VocabularyKind,
    /// Special tokens, bytes and pieces together.
    pub vocab_size: usize,
    /// The end of sequence, unless the template ends turns with another token; also used for padding.
    pub end: String,
    /// Further tokens that are never split, in this order behind the end.
    pub specials: Vec<String>,
    /// One of `BUILT_IN_TEMPLATES`; its markers become special tokens.
    pub template: Option<String>,
    /// Read about so many bytes of text, spread over the rows.
    pub limit_bytes: Option<u64>,
    /// Different words kept while counting. Where there are more, the rarest go: counting stays within some hundred bytes
    /// a word, training within a kilobyte.
    pub words_max: usize,
}

impl VocabularyOptions {
    pub fn new(kind: VocabularyKind, vocab_size: usize) -> Self {
        let words_max = match kind {
            VocabularyKind::Bpe => 1_000_000,
            // The trainer holds a suffix array over all words.
            VocabularyKind::Unigram => 500_000,
        };
        let end = "<|endoftext|>".to_owned();
        Self { kind, vocab_size, end, specials: Vec::new(), template: None, limit_bytes: None, words_max }
    }
}

/// How far training is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VocabularyProgress {
    pub rows: u64,
    /// Rows that could not be read or hold no text.
    pub bad_rows: u64,
    pub text_bytes: u64,
    pub words: usize,
    /// Occurrences of words that were dropped because there were more than `words_max` different ones.
    pub dropped: u64,
}

/// Counts the words of `source` and makes a vocabulary of them. `progress` is called now and then while reading.
pub fn train_tokenizer(
    source: &Source,
    options: &VocabularyOptions,
    progress: &mut dyn FnMut(VocabularyProgress),
) -> Result<TrainedTokenizer, DataError> {
    let specials = write::special_tokens(options)?;
    let alphabet = if options.kind == VocabularyKind::Unigram { 2 + ALPHABET.count() } else { 0 };
    let least = specials.len() + 256 + alphabet;
    if options.vocab_size <= least {
        return Err(failed(format!(
            "a vocabulary of {} leaves no room: bytes, letters and special tokens alone are {least}",
            options.vocab_size
        )));
    }
    let mut tokenizer = pipeline(options.kind)?;
    let (words, counted) = count(source, options, &tokenizer, progress)?;
    if words.is_empty() {
        return Err(DataError::Empty { files: source.name() });
    }
    let tokens: Vec<AddedToken> = specials.iter().map(|text| AddedToken::from(text.as_str(), true)).collect();
    let model = match options.kind {
        VocabularyKind::Bpe => ModelWrapper::BPE(train_bpe(words, options, &tokens)?),
        VocabularyKind::Unigram => ModelWrapper::Unigram(train_unigram(words, options, &specials)?),
    };
    tokenizer.with_model(model);
    tokenizer.add_special_tokens(tokens).map_err(failed)?;
    write::finish(&tokenizer, options, counted)
}

fn failed(reason: impl ToString) -> DataError {
    DataError::Vocabulary { reason: reason.to_string() }
}

/// Everything of the tokenizer but its vocabulary.
fn pipeline(kind: VocabularyKind) -> Result<tokenizers::Tokenizer, DataError> {
    let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::BPE(BPE::default()));
    match kind {
        VocabularyKind::Bpe => {
            let bytes = ByteLevel::new(false, true, true);
            tokenizer.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
            tokenizer.with_post_processor(Some(ByteLevel::new(false, false, true)));
        }
        VocabularyKind::Unigram => {
            // Line ends are words of their own. No mark is put before a text: one that begins with a space could not be told
            // from one that does not.
            let lines = Split::new(SplitPattern::String("\n".to_owned()), SplitDelimiterBehavior::Isolated, false);
            let spaces = Metaspace::new(SPACE, PrependScheme::Never, true);
            let steps = vec![
                PreTokenizerWrapper::Split(lines.map_err(failed)?),
                PreTokenizerWrapper::Metaspace(spaces.clone()),
            ];
            tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
            tokenizer.with_decoder(Some(Decoders::new(vec![ByteFallback::new().into(), spaces.into()])));
        }
    }
    Ok(tokenizer)
}

fn count(
    source: &Source,
    options: &VocabularyOptions,
    tokenizer: &tokenizers::Tokenizer,
    progress: &mut dyn FnMut(VocabularyProgress),
) -> Result<(Words, VocabularyProgress), DataError> {
    let mut words = Words::new(options.words_max);
    let mut so_far = VocabularyProgress::default();
    let limit = options.limit_bytes.unwrap_or(u64::MAX);
    // Every n-th row, so that a limit takes from all of the data. Packed files hold more than their size says; the limit
    // itself holds in any case.
    let every = (source.bytes() / limit.max(1)).max(1);
    let (mut batch, mut batch_bytes, mut problem) = (Vec::new(), 0, None);
    for (index, row) in (0u64..).zip(source.all()) {
        let texts = match row {
            Ok(_) if index % every != 0 => continue,
            Ok(row) => texts_of(&row),
            Err(error) => Err(error),
        };
        so_far.rows += 1;
        match texts {
            Ok(texts) => {
                batch_bytes += texts.iter().map(String::len).sum::<usize>();
                batch.extend(texts);
            }
            Err(error) if error.is_bad_row() => {
                so_far.bad_rows += error.rows_lost();
                problem = problem.or(Some(error));
            }
            Err(error) => return Err(error),
        }
        let enough = so_far.text_bytes + batch_bytes as u64 >= limit;
        if batch_bytes >= BATCH_BYTES || enough {
            words.add(&batch, tokenizer)?;
            so_far.text_bytes += batch_bytes as u64;
            (so_far.words, so_far.dropped) = (words.len(), words.dropped());
            progress(so_far);
            (batch_bytes, _) = (0, batch.clear());
        }
        if enough {
            break;
        }
    }
    words.add(&batch, tokenizer)?;
    so_far.text_bytes += batch_bytes as u64;
    (so_far.words, so_far.dropped) = (words.len(), words.dropped());
    progress(so_far);
    match problem {
        Some(problem) if words.is_empty() => Err(problem),
        _ => Ok((words, so_far)),
    }
}

/// All that a row says, whatever the rows before it were: files of several formats make one vocabulary.
fn texts_of(row: &Row) -> Result<Vec<String>, DataError> {
    Ok(match RowFormat::detect(row)?.read_any(row)? {
        Sample::Text(text) => vec![text],
        Sample::PromptResponse { prompt, response } => vec![prompt, response],
        Sample::Messages { messages, .. } => {
            messages.iter().filter_map(|message| Some(message["content"].as_str()?.to_owned())).collect()
        }
        Sample::Pair(preference) => preference.into_texts(),
    })
}

fn train_bpe(words: Words, options: &VocabularyOptions, specials: &[AddedToken]) -> Result<BPE, DataError> {
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(options.vocab_size)
        .min_frequency(2)
        .initial_alphabet(alphabet)
        .special_tokens(specials.to_vec())
        .build();
    let mut model = BPE::default();
    trainer.do_train(&words.into_counts(), &mut model).map_err(failed)?;
    Ok(model)
}

/// The trainer knows nothing of bytes, so it makes a vocabulary that leaves room for them.
fn train_unigram(words: Words, options: &VocabularyOptions, specials: &[String]) -> Result<Unigram, DataError> {
    let before: Vec<String> = specials
        .iter()
        .cloned()
        .chain([UNKNOWN.to_owned()])
        .chain((0..256).map(|byte| format!("<0x{byte:02X}>")))
        .collect();
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .initial_alphabet(ALPHABET.chain([SPACE]).collect())
        .vocab_size(u32::try_from(options.vocab_size - before.len()).map_err(failed)?)
        .build()
        .map_err(failed)?;
    let counts = words.into_counts();
    let mut sentences: Vec<(String, u32)> =
        counts.into_iter().map(|(word, count)| (word.into(), u32::try_from(count).unwrap_or(u32::MAX))).collect();
    // The trainer's result depends on their order, and a map has none.
    sentences.sort_unstable();
    let mut pieces = Unigram::default();
    trainer.do_train(sentences, &mut pieces).map_err(failed)?;
    let known: AHashSet<&str> = before.iter().map(String::as_str).collect();
    let mut learnt: Vec<(String, f64)> =
        pieces.iter().filter(|(piece, _)| !known.contains(piece.as_str())).cloned().collect();
    // The trainer leaves equals in the order of a map.
    learnt.sort_by(|(a, p), (b, q)| q.total_cmp(p).then_with(|| a.cmp(b)));
    let vocabulary: Vec<(String, f64)> =
        before.iter().map(|token| (token.clone(), SCORE_NEVER)).chain(learnt).collect();
    Unigram::from(vocabulary, Some(specials.len()), true).map_err(failed)
}
