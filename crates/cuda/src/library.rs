//! Finds the driver, NVRTC (with its headers) and cuBLASLt at run time, so that one binary serves
//! every machine. In this order: `PLIMSOLL_CUDA_PATH`, the system's library path, installed toolkits,
//! the wheels of the active Python environment.
//!
//! A library found in a folder is opened by its path before `cudarc` asks for it by name: the loader then
//! gives out the one that is already there. `cudarc` panics where nothing answers to the name, so
//! nothing of it is called before [`require`] has said yes.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{CudaError, DRIVER, Missing};

/// The libraries there are to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    Driver,
    Nvrtc,
    BlasLt,
}

impl Library {
    fn names(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1", "libcuda.so"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Library::BlasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
        }
    }

    fn missing(self) -> Missing {
        let (what, hint) = match self {
            Library::Driver => (DRIVER, "install the driver of your card"),
            Library::Nvrtc => ("NVRTC", "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime, or the CUDA toolkit"),
            Library::BlasLt => ("cuBLASLt", "pip install nvidia-cublas, or the CUDA toolkit"),
        };
        Missing { what, names: self.names(), hint }
    }

    /// A function that it must have: not everything that bears its name is it.
    fn probe(self) -> &'static CStr {
        match self {
            Library::Driver => c"cuDevicePrimaryCtxRetain",
            Library::Nvrtc => c"nvrtcCompileProgram",
            Library::BlasLt => c"cublasLtMatmul",
        }
    }

    /// Whether `cudarc` will find it.
    fn answers(self) -> bool {
        // SAFETY: asks the loader and calls nothing.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::BlasLt => cudarc::cublaslt::sys::is_culib_present(),
            }
        }
    }
}

/// Opens every library of the list, or says which are missing and how to get them.
pub(crate) fn require(libraries: &[Library]) -> Result<(), CudaError> {
    // Two threads that search at once would open everything twice.
    static SEARCHING: Mutex<()> = Mutex::new(());
    let _guard = SEARCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let folders = library_folders();
    let absent: Vec<Library> = libraries.iter().copied().filter(|&library| !open(library, &folders)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    Err(CudaError::Missing { missing: absent.into_iter().map(Library::missing).collect(), searched: folders })
}

fn open(library: Library, folders: &[PathBuf]) -> bool {
    let own: Vec<PathBuf> = own_folders().collect();
    let in_folders = |folders: &[PathBuf]| {
        folders.iter().flat_map(|folder| library.names().iter().map(move |name| folder.join(name))).any(|path| {
            // NVRTC asks for a second library by a bare name, which is not on the loader's path.
            let builtins = library == Library::Nvrtc && path.exists();
            if builtins && let Some(folder) = path.parent() {
                open_builtins(folder);
            }
            path.is_file() && open_file(path.as_os_str().as_bytes(), Some(library.probe()))
        })
    };
    let by_name = || library.names().iter().any(|name| open_file(name.as_bytes(), Some(library.probe())));
    (in_folders(&own) || by_name() || in_folders(folders)) && library.answers()
}

/// Opens a library and leaves it open, if it has the function that is asked for.
fn open_file(path: &[u8], probe: Option<&CStr>) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    // SAFETY: loads a library NVIDIA made for this; its start-up code is trusted as the program itself is.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: the library is open; one that is not ours is closed again, before anything of it was called.
    unsafe {
        let there = probe.is_none_or(|symbol| !libc::dlsym(handle, symbol.as_ptr()).is_null());
        if !there {
            libc::dlclose(handle);
        }
        there
    }
}

/// A library that was opened and stays open.
pub(crate) struct Opened(*mut libc::c_void);

impl Opened {
    /// # Safety
    /// `F` must be the function pointer type that the library's header gives the symbol.
    pub(crate) unsafe fn function<F: Copy>(&self, symbol: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>(), "a function pointer") };
        // SAFETY: asks an open library for a symbol.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        // SAFETY: a pointer of the same size, which the caller vouches is of that type.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }
}

/// The driver, for what not every version of it has. [`require`] has found it before.
pub(crate) fn driver() -> Option<Opened> {
    open_optional(Library::Driver.names())
}

/// Opens the first library of these names that there is.
pub(crate) fn open_optional(names: &[&str]) -> Option<Opened> {
    let in_folder = |folder: PathBuf| names.iter().map(move |name| folder.join(name)).filter(|path| path.is_file());
    let own = own_folders().flat_map(in_folder);
    let elsewhere = DRIVER_FOLDERS.iter().map(PathBuf::from).flat_map(in_folder);
    let mut paths = own.chain(names.iter().map(PathBuf::from)).chain(elsewhere);
    paths.find_map(|path| {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: as in `open_file`.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(Opened(handle))
    })
}

fn open_builtins(folder: &Path) {
    for path in entries(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("libnvrtc-builtins.so") {
            open_file(path.as_os_str().as_bytes(), None);
        }
    }
}

/// The folder that holds `cuda_fp16.h`: beside the NVRTC that was opened, or wherever there is one.
pub(crate) fn include_folder() -> Option<PathBuf> {
    let beside = nvrtc_file().and_then(|file| file.parent().map(Path::to_owned));
    let beside = beside.into_iter().flat_map(|lib| include_folders_of(&lib));
    let system = [PathBuf::from("/usr/local/cuda/include"), PathBuf::from("/usr/include")];
    let elsewhere = library_folders().into_iter().flat_map(|lib| include_folders_of(&lib));
    beside.chain(elsewhere).chain(system).find(|folder| folder.join("cuda_fp16.h").is_file())
}

/// What to say where there are no headers.
pub(crate) fn missing_headers() -> CudaError {
    let headers = Missing {
        what: "CUDA headers",
        names: &["cuda_fp16.h", "cuda_bf16.h"],
        hint: "pip install nvidia-cuda-runtime (nvidia-cuda-runtime-cu12 for CUDA 12), or the CUDA toolkit",
    };
    CudaError::Missing { missing: vec![headers], searched: library_folders() }
}

/// Headers lie beside the libraries, in wheels of CUDA 12 in a folder beside theirs.
fn include_folders_of(lib: &Path) -> Vec<PathBuf> {
    let Some(root) = lib.parent() else { return Vec::new() };
    let siblings = root.parent().map(entries).unwrap_or_default();
    let mut folders = vec![root.join("include")];
    folders.extend(siblings.into_iter().map(|sibling| sibling.join("include")));
    folders
}

/// The file NVRTC was loaded from. Only after it was opened.
fn nvrtc_file() -> Option<PathBuf> {
    // SAFETY: looks a symbol up and asks where it lies; both results live as long as the library, which stays open.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"nvrtcVersion".as_ptr());
        let mut info: libc::Dl_info = std::mem::zeroed();
        if symbol.is_null() || libc::dladdr(symbol, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = CStr::from_ptr(info.dli_fname);
        std::fs::canonicalize(std::ffi::OsStr::from_bytes(name.to_bytes())).ok()
    }
}

/// The folders of `PLIMSOLL_CUDA_PATH`.
fn own_folders() -> impl Iterator<Item = PathBuf> {
    let roots = std::env::var_os("PLIMSOLL_CUDA_PATH").unwrap_or_default();
    let roots: Vec<PathBuf> = std::env::split_paths(&roots).filter(|p| !p.as_os_str().is_empty()).collect();
    roots.into_iter().flat_map(|root| {
        let mut folders = vec![root.clone()];
        folders.extend(toolkit_folders(&root));
        folders.extend(python_folders(&root));
        folders.retain(|folder| folder.is_dir());
        folders
    })
}

/// Every folder that may hold libraries, existing ones only, the preferred first.
fn library_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = own_folders().collect();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(std::env::var_os(variable).into_iter().flat_map(|root| toolkit_folders(Path::new(&root))));
    }
    folders.extend(toolkit_folders(Path::new("/usr/local/cuda")));
    let mut versions: Vec<PathBuf> = entries(Path::new("/usr/local"));
    versions.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda-")));
    // The newest first.
    versions.reverse();
    folders.extend(versions.iter().flat_map(|root| toolkit_folders(root)));
    for prefix in python_prefixes() {
        folders.extend(python_folders(&prefix));
    }
    folders.extend(DRIVER_FOLDERS.map(PathBuf::from));
    let mut known: Vec<PathBuf> = Vec::new();
    folders.into_iter().filter(|folder| folder.is_dir()).for_each(|folder| {
        if !known.contains(&folder) {
            known.push(folder);
        }
    });
    known
}

/// Where containers and WSL mount the driver.
const DRIVER_FOLDERS: [&str; 3] = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"];

fn toolkit_folders(root: &Path) -> Vec<PathBuf> {
    ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"].iter().map(|sub| root.join(sub)).collect()
}

/// Roots of Python environments: the active one, then the ones whose `python3` is on the path.
fn python_prefixes() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = Vec::new();
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        prefixes.extend(std::env::var_os(variable).map(PathBuf::from));
    }
    for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        let python = folder.join("python3");
        if !python.exists() {
            continue;
        }
        prefixes.extend(folder.parent().map(Path::to_owned));
        let target = std::fs::canonicalize(&python).ok();
        prefixes.extend(target.and_then(|file| Some(file.parent()?.parent()?.to_owned())));
    }
    prefixes.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    prefixes.push(PathBuf::from("/usr/local"));
    prefixes
}

/// `lib` folders of the `nvidia-*` wheels under a prefix.
fn python_folders(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for lib in ["lib", "lib64"].map(|sub| prefix.join(sub)) {
        let pythons = entries(&lib)
            .into_iter()
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
        for packages in pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|sub| python.join(sub))) {
            folders.extend(entries(&packages.join("nvidia")).into_iter().map(|wheel| wheel.join("lib")));
        }
    }
    folders
}

/// What a folder holds, in the order of the names; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).map(|read| read.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_found_under_a_prefix() {
        let root = std::env::temp_dir().join(format!("plimsoll-wheels-{}", std::process::id()));
        let lib = root.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).expect("a temporary folder");
        let found = python_folders(&root);
        std::fs::remove_dir_all(&root).expect("just made");
        assert_eq!(found, [lib]);
    }

    #[test]
    fn headers_are_looked_for_beside_the_library() {
        let folders = include_folders_of(Path::new("/a/nvidia/cu13/lib"));
        assert_eq!(folders[0], Path::new("/a/nvidia/cu13/include"));
    }
}
