from khop.trace.events import merge as merge
from khop.trace.recording import Recording as Recording, record as record
