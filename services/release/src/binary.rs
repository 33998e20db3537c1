//! Reads a program's file: its processor, and whether it runs without any other file.

use anyhow::{Context, bail, ensure};
use object::elf::FileHeader64;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, elf};

/// A processor that images are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Architecture {
    /// Its name in images, which is Go's.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// For which processor a program is, if it needs no interpreter and no library; an error says what it needs.
///
/// # Errors
/// If it is not a 64-bit ELF program, is for another processor, or is not static.
pub fn architecture_of_static(program: &[u8]) -> anyhow::Result<Architecture> {
    let header = FileHeader64::<Endianness>::parse(program).context("not a 64-bit ELF program")?;
    let endian = header.endian().context("not a 64-bit ELF program")?;
    for segment in header.program_headers(endian, program).context("its program headers cannot be read")? {
        if let Some(path) = segment.interpreter(endian, program).context("its interpreter cannot be read")? {
            bail!("not static: it asks for {}; build it with +crt-static", String::from_utf8_lossy(path));
        }
        let dynamic =
            segment.dynamic(endian, program).context("its dynamic section cannot be read")?.unwrap_or_default();
        let needed = dynamic.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED).count();
        ensure!(needed == 0, "not static: it needs {needed} libraries; build it with +crt-static");
    }
    match header.e_machine(endian) {
        elf::EM_X86_64 => Ok(Architecture::Amd64),
        elf::EM_AARCH64 => Ok(Architecture::Arm64),
        other => bail!("for a processor that no image is made for (ELF machine {other})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of a program without anything in it.
    fn head(machine: u16) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        head[16] = 3;
        head[18..20].copy_from_slice(&machine.to_le_bytes());
        head[20] = 1;
        head[52] = 64;
        head
    }

    #[test]
    fn the_processor_is_read_from_the_program() {
        assert_eq!(architecture_of_static(&head(62)).unwrap(), Architecture::Amd64);
        assert_eq!(architecture_of_static(&head(183)).unwrap(), Architecture::Arm64);
        let error = architecture_of_static(&head(243)).unwrap_err().to_string();
        assert!(error.contains("no image is made for"), "{error}");
    }

    #[test]
    fn what_needs_a_loader_is_refused() {
        // Tests are linked as everything else is, against the libraries of the machine.
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = architecture_of_static(&program).unwrap_err().to_string();
        assert!(error.contains("not static: it asks for /lib"), "{error}");
        assert!(architecture_of_static(b"#!/bin/sh").unwrap_err().to_string().contains("not a 64-bit ELF program"));
    }
}
