//! How likely the model found each answer before it was trained, for losses that compare with it.
//!
//! With adapters, the model without them is still there. Where everything is trained it is gone after the first update, so
//! it is asked about all sequences before that, and the answers are kept: in memory, and in a file of the run for those who
//! go on with it. A sequence is known by its tokens and by which of them are learnt, wherever it lies and however often.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use plimsoll_data::{Dataset, MicroBatch, NO_LOSS};
use plimsoll_files::Checksum;

use crate::{Session, TrainError};

/// A sequence's key and its log-probability, so that entries in the order of their bytes are in the order of their keys.
const ENTRY_BYTES: usize = 12;
const KEY_BYTES: usize = 8;
const MAGIC: [u8; 8] = *b"plimref1";
const SUM_BYTES: usize = 16;

/// The whole file: [`MAGIC`], entries by key, a checksum.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct References(Vec<u8>);

/// What those of so many sequences take in memory.
pub fn reference_bytes(sequences: u64) -> u64 {
    sequences * ENTRY_BYTES as u64 + (MAGIC.len() + SUM_BYTES) as u64
}

impl References {
    fn entries(&self) -> &[[u8; ENTRY_BYTES]] {
        self.0[MAGIC.len()..self.0.len() - SUM_BYTES].as_chunks().0
    }

    fn find(&self, key: u64) -> Option<f32> {
        let key = key.to_be_bytes();
        let at = self.entries().binary_search_by(|entry| entry[..KEY_BYTES].cmp(&key)).ok()?;
        let value: [u8; 4] = self.entries()[at][KEY_BYTES..].try_into().expect("four bytes behind the key");
        Some(f32::from_le_bytes(value))
    }

    /// Asks the model as it is now about all sequences.
    pub fn compute(session: &mut Session, datasets: &[&Dataset]) -> Result<Self, TrainError> {
        let sequences: u64 = datasets.iter().filter_map(|data| data.sequences()).sum();
        let mut file = Vec::with_capacity(reference_bytes(sequences) as usize);
        file.extend(MAGIC);
        for data in datasets {
            let mut batches = data.sequential(session.capacity())?;
            while let Some(batch) = batches.next_batch()? {
                add(session, batch, &mut file)?;
            }
        }
        Ok(Self::sealed(file))
    }

    /// The same of a few sequences that are at hand.
    pub fn of_batches(session: &mut Session, batches: &[MicroBatch]) -> Result<Self, TrainError> {
        let mut file = MAGIC.to_vec();
        batches.iter().try_for_each(|batch| add(session, &mut batch.clone(), &mut file))?;
        Ok(Self::sealed(file))
    }

    /// Puts the entries behind the magic in order, and the checksum behind them.
    fn sealed(mut file: Vec<u8>) -> Self {
        file[MAGIC.len()..].as_chunks_mut::<ENTRY_BYTES>().0.sort_unstable();
        let sum = sum(&file);
        file.extend(sum);
        Self(file)
    }

    /// In a run's folder.
    pub fn path(run: &Path) -> PathBuf {
        run.join("reference.bin")
    }

    pub fn write(&self, path: &Path) -> Result<(), TrainError> {
        plimsoll_files::write(path, &self.0).map_err(|e| TrainError::io(path, e))
    }

    /// Of a run that goes on. There is no other way to come by them: its weights are no longer those it began with.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let read = std::fs::read(path).and_then(Self::checked);
        read.map_err(|error| TrainError::References { path: path.to_owned(), reason: error.to_string() })
    }

    fn checked(file: Vec<u8>) -> io::Result<Self> {
        let damaged = || io::Error::new(ErrorKind::InvalidData, "it is damaged");
        let body = file.len().checked_sub(SUM_BYTES).ok_or_else(damaged)?;
        let whole = file.starts_with(&MAGIC) && (body - MAGIC.len().min(body)).is_multiple_of(ENTRY_BYTES);
        if whole && sum(&file[..body]) == file[body..] { Ok(Self(file)) } else { Err(damaged()) }
    }

    /// For each token 0, but at the last one of each sequence that learns what the model found then.
    pub fn mark(&self, batch: &MicroBatch, marks: &mut Vec<f32>) -> Result<(), TrainError> {
        marks.clear();
        marks.resize(batch.len(), 0.0);
        for sequence in 0..batch.sequences() {
            let (begin, end) = bounds(batch, sequence);
            // What only fills a micro-batch up learns nothing.
            if batch.targets[begin..end].iter().any(|&target| target != NO_LOSS) {
                marks[end - 1] = self.find(key(batch, sequence)).ok_or(TrainError::NoReference)?;
            }
        }
        Ok(())
    }
}

/// An entry for each of the micro-batch's sequences.
fn add(session: &mut Session, batch: &mut MicroBatch, file: &mut Vec<u8>) -> Result<(), TrainError> {
    let found = session.reference_log_probs(batch)?;
    for (sequence, log_prob) in found.into_iter().enumerate() {
        file.extend(key(batch, sequence).to_be_bytes());
        file.extend(log_prob.to_le_bytes());
    }
    Ok(())
}

fn sum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let mut checksum = Checksum::default();
    checksum.update(bytes);
    checksum.finish().xxh3.to_le_bytes()
}

fn bounds(batch: &MicroBatch, sequence: usize) -> (usize, usize) {
    let ends = &batch.main().cu_seqlens;
    (ends[sequence] as usize, ends[sequence + 1] as usize)
}

/// Of a sequence's tokens and targets; the upper half of their checksum.
fn key(batch: &MicroBatch, sequence: usize) -> u64 {
    let (begin, end) = bounds(batch, sequence);
    let mut checksum = Checksum::default();
    for numbers in [&batch.main().tokens[begin..end], &batch.targets[begin..end]] {
        checksum.update(bytemuck::cast_slice(numbers));
    }
    (checksum.finish().xxh3 >> 64) as u64
}

#[cfg(test)]
mod tests {
    use plimsoll_data::TokenStream;

    use super::*;

    fn batch(sequences: &[&[i32]]) -> MicroBatch {
        let mut stream = TokenStream::default();
        for tokens in sequences {
            stream.tokens.extend(*tokens);
            stream.cu_seqlens.push(stream.tokens.len() as i32);
        }
        let targets = stream.tokens.iter().map(|&token| if token == 0 { NO_LOSS } else { token }).collect();
        MicroBatch { targets, streams: vec![stream], ..MicroBatch::default() }
    }

    fn references(batch: &MicroBatch) -> References {
        let mut file = MAGIC.to_vec();
        for sequence in 0..batch.sequences() {
            file.extend(key(batch, sequence).to_be_bytes());
            file.extend((sequence as f32).to_le_bytes());
        }
        References::sealed(file)
    }

    #[test]
    fn sequences_are_known_by_what_they_are() {
        let known: Vec<Vec<i32>> = (1..60).map(|i| (0..i % 9 + 1).map(|t| 3 + (t * i) % 40).collect()).collect();
        let known: Vec<&[i32]> = known.iter().map(Vec::as_slice).collect();
        let references = references(&batch(&known));
        // In another order, one of them twice, and a filling sequence, which nobody knows.
        let asked = [known[17], known[3], &[0, 0], known[17], &[], known[58]];
        let mut marks = Vec::new();
        references.mark(&batch(&asked), &mut marks).expect("all are known");
        let expected: Vec<f32> = asked
            .iter()
            .flat_map(|tokens| {
                let value = known.iter().position(|k| k == tokens).map_or(0.0, |at| at as f32);
                (0..tokens.len()).map(move |t| if t + 1 == tokens.len() { value } else { 0.0 })
            })
            .collect();
        assert_eq!(marks.len(), expected.len());
        for (mark, wanted) in marks.iter().zip(&expected) {
            // Equal sequences may be found under either number.
            assert!(mark == wanted || known[*mark as usize] == known[*wanted as usize], "{mark} for {wanted}");
        }
        let unknown = references.mark(&batch(&[&[9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]]), &mut marks);
        assert!(matches!(unknown, Err(TrainError::NoReference)));
    }

    #[test]
    fn damage_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = References::path(folder.path());
        let whole = references(&batch(&[&[1, 2], &[3]]));
        whole.write(&path).expect("writable");
        assert_eq!(References::read(&path).expect("whole"), whole);
        assert_eq!(whole.0.len() as u64, reference_bytes(2));
        for at in 0..whole.0.len() {
            let mut bytes = whole.0.clone();
            bytes[at] ^= 4;
            assert!(References::checked(bytes).is_err(), "byte {at}");
            assert!(References::checked(whole.0[..at].to_vec()).is_err(), "cut off at {at}");
        }
        std::fs::remove_file(&path).expect("there");
        let missing = References::read(&path).expect_err("is gone").to_string();
        assert!(missing.contains("reference.bin"), "{missing}");
    }
}
