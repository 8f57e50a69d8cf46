"""Examples. Run one with: python -m cnnps.run --workers 4 -m cnnps.examples.fashion"""
