//! Pages, typed: blocks are read from the file itself and really run.
//!
//! Commands go to a shell as they are printed. What is different from a reader's machine is around them: `lowkey`
//! is the binary under test, and ports that a test cannot have are led elsewhere, by the environment where that is
//! possible and by another number where it is printed in a flag.
//!
//! - `page.rs`: a page, its blocks, the commands in them and the answers below those
//! - `terminal.rs`: a folder, an environment and a shell
//! - `playground.rs`: `lowkey dev`, and a terminal beside it
//! - `player.rs`: types a whole page, from top to bottom, and compares every answer

pub(crate) mod page;
pub(crate) mod player;
pub(crate) mod playground;
pub(crate) mod terminal;
