"""Recalculate one sheet with functions of the web in a running LibreOffice, by the Python that it comes with.

Words: port of its UNO bridge, file to open. The cells of the first column are printed, a line each.
"""

import os
import sys
import time

import uno
from com.sun.star.beans import PropertyValue
from com.sun.star.connection import NoConnectException

FULL_UPDATE = 3  # com.sun.star.document.UpdateDocMode


def said(name, value):
    found = PropertyValue()
    found.Name, found.Value = name, value
    return found


def desktop(port):
    here = uno.getComponentContext()
    resolver = here.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", here)
    for _ in range(600):
        try:
            context = resolver.resolve(f"uno:socket,host=127.0.0.1,port={port};urp;StarOffice.ComponentContext")
            return context.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", context)
        except NoConnectException:
            time.sleep(0.5)
    raise SystemExit("LibreOffice does not answer")


def main():
    office = desktop(int(sys.argv[1]))
    # a plain whole number would be a long, which is not looked at
    how = (said("Hidden", True), said("UpdateDocMode", uno.Any("short", FULL_UPDATE)))
    document = office.loadComponentFromURL(uno.systemPathToFileUrl(sys.argv[2]), "_blank", 0, how)
    sheet = document.Sheets.getByIndex(0)
    for _ in range(600):
        cells = [sheet.getCellByPosition(0, row).String for row in range(4)]
        if not any(text.startswith(("#", "Err")) for text in cells):
            break
        time.sleep(0.5)
    print("\n".join(cells), flush=True)
    document.close(True)
    office.terminate()


main()
# the bridge that has just been cut off may crash an interpreter that tidies up
os._exit(0)
